#include "core/fsdp/run/root.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>

#include "core/base/error.h"
#include "core/dist/world.h"
#include "core/fsdp/run/input_watch.h"
#include "core/fsdp/unit/reduction.h"
#include "core/module/scalar_type.h"

namespace shardlens::fsdp {
namespace {

std::vector<FlatParamHandle*> handles_of(const std::vector<std::shared_ptr<FsdpState>>& states) {
  std::vector<FlatParamHandle*> handles;
  for (const auto& state : states) {
    handles.push_back(state->handle());
  }
  return handles;
}

// Casts only floating-point tensors.
void cast(module::TensorRefs& tensors, DType dtype) {
  const at::ScalarType target = module::to_scalar_type(dtype);
  for (at::Tensor* tensor : tensors) {
    if (tensor->defined() && tensor->is_floating_point() && tensor->scalar_type() != target) {
      *tensor = tensor->to(target);
    }
  }
}

// Whether the op belongs to a reshard. The limiter records an event after a free.
bool reshards(schedule::Op op) {
  return op == schedule::Op::kUseShard || op == schedule::Op::kFree || op == schedule::Op::kRecord;
}

}  // namespace

Root::Root(plan::ResolvedPlan plan,
           const Options& options,
           schedule::Schedule schedule,
           std::vector<std::shared_ptr<FsdpState>> states)
    : plan_(std::move(plan)),
      options_(options),
      schedule_(std::move(schedule)),
      states_(std::move(states)),
      progress_(states_.size()),
      full_before_(states_.size(), false),
      executor_(
          options.make_executor
              ? options.make_executor(handles_of(states_))
              : std::make_unique<Executor>(handles_of(states_), *options.world, options.recorder)) {
  executor_->use_groups(plan_.groups);
  std::vector<std::string> names;
  for (const plan::Unit& unit : plan_.units) {
    names.push_back(unit.fqn);
  }
  if (options_.recorder != nullptr) {
    options_.recorder->units(names);
    options_.recorder->groups(mesh::names_of(plan_.groups));
  }
  reset_progress();
  if (options_.collectives != nullptr) {
    executor_->set_collectives(options_.collectives);
  }
  if (options_.check_ledger) {
    ledger_ =
        std::make_unique<schedule::Ledger>(specs_of(plan_, states_), options_of(plan_, options_));
  }
  for (const auto& state : states_) {
    const FlatParamHandle* handle = state->handle();
    for (size_t i = 0; handle != nullptr && handle->is_mixed() && i < handle->slots().size(); ++i) {
      if (!handle->is_frozen(i)) {
        shards_.push_back(handle->slots()[i].parameter);
      }
    }
    if (handle != nullptr && !handle->is_mixed()) {
      shards_.push_back(handle->shard());
    }
  }
  begin_stepped_norm();
}

std::string Root::prefix() const {
  return "[rank " + std::to_string(options_.world->rank()) + "] ";
}

void Root::raise(const HookEvent& event) {
  if (options_.recorder != nullptr) {
    options_.recorder->hook(event);
  }
  remember(event);
  if (event.hook != Hook::kGradsReady) {
    executor_->enter();
  }
  schedule::ActionList actions;
  const Result<void> planned = schedule_.on(event, actions);
  if (!planned.ok()) {
    throw RuntimeFault(prefix() + planned.message());
  }
  // The ledger gets all actions first: after a failure the schedule assumes that all were executed,
  // so the ledger must too.
  for (const schedule::Action& action : actions) {
    const Result<void> kept = ledger_ == nullptr ? Result<void>() : ledger_->consume(action);
    if (!kept.ok()) {
      throw RuntimeFault(prefix() + kept.message());
    }
  }
  try {
    perform(actions, event);
  } catch (...) {
    faulted_ = true;
    throw;
  }
}

void Root::perform(const schedule::ActionList& actions, const HookEvent& event) {
  size_t i = 0;
  if (event.hook == Hook::kGradsReady) {  // a post-backward has two ranges, as in FSDP2
    {
      const RangeScope range(options_.recorder, Range::kPostBackwardReshard, event.unit);
      for (; i < actions.size() && reshards(actions[i].op); ++i) {
        execute(actions[i], event);
      }
    }
    if (i < actions.size()) {
      const RangeScope range(options_.recorder, Range::kPostBackwardReduce, event.unit);
      for (; i < actions.size(); ++i) {
        execute(actions[i], event);
      }
    }
    return;
  }
  for (; i < actions.size(); ++i) {
    execute(actions[i], event);
  }
}

void Root::execute(const schedule::Action& action, const HookEvent& event) {
  const bool forward = event.hook == Hook::kPreForward && !event.recompute;
  if (action.op == schedule::Op::kUseFull && forward && event.grad_mode && !shadowing_ &&
      states_[action.unit]->handle()->requires_grad() &&
      (plan_.plan.views == plan::Views::kFresh || !states_[action.unit]->handle()->has_views())) {
    make_views(action.unit);
  }
  // Parameters that the user unshards between steps are not part of a graph.
  const bool edges = forward ? event.grad_mode : event.hook != Hook::kWaitUnshard;
  executor_->execute(action, edges && !shadowing_);
}

// See [Note: When the node is made].
void Root::make_views(UnitId unit) {
  std::function<void()> ended;
  // FSDP2 detects the end of a use's backward by the gradients of its inputs; FSDP1 does not detect
  // it. Frozen views are shared by all uses.
  if (plan_.plan.views == plan::Views::kFresh && plan_.plan.dialect == plan::Dialect::kFsdp2 &&
      progress_[unit].inputs_require_grad) {
    ended = [weak = weak_from_this(), unit] {
      if (const auto root = weak.lock()) {
        root->use_ended(unit);
      }
    };
  }
  states_[unit]->handle()->make_views(std::move(ended));
}

void Root::pre_forward(UnitId unit, size_t slot, module::TensorRefs& inputs) {
  settle();
  const plan::Unit& spec = plan_.units[unit];
  Progress& progress = progress_[unit];
  if (progress.open[slot]) {
    progress.refused = true;
    throw UsageError(prefix() + "unit '" + spec.fqn +
                     "': its forward was called from within itself; a sharded module cannot "
                     "recurse, its parameters are freed when the inner call ends");
  }
  progress.open[slot] = true;
  bool inputs_require_grad = false;
  for (const at::Tensor* input : inputs) {
    inputs_require_grad = inputs_require_grad || (input->defined() && input->requires_grad());
  }
  if (casts_inputs(unit)) {
    cast(inputs, *spec.mixed_precision.param_dtype);
  }
  if (progress.running) {
    return;  // a unit of several modules unshards when the first of them begins
  }
  progress.running = true;
  progress.done.assign(progress.done.size(), false);
  if (in_backward_) {
    return recompute(unit, Hook::kPreForward);
  }
  progress.inputs_require_grad = inputs_require_grad;
  progress.outputs_require_grad = false;
  progress.pre_backward = false;
  gathered_ = at::Tensor();
  gathered_unit_ = kNoUnit;
  const HookEvent event{Hook::kPreForward, unit, progress.invocation, at::GradMode::is_enabled()};
  if (forward_root_ == kNoUnit) {
    begin_forward(unit, event);
  }
  {
    const RangeScope range(options_.recorder, Range::kPreForward, unit);
    raise(event);
  }
  const FlatParamHandle* handle = states_[unit]->handle();
  const bool fsdp1 = plan_.plan.dialect == plan::Dialect::kFsdp1;
  // FSDP1 watches the first of several uses, whose backward comes last.
  const bool watches = !fsdp1 || !progress.watched;
  if (event.grad_mode && handle != nullptr && !handle->requires_grad() && watches) {
    progress.watched = true;
    watch_inputs(inputs, fsdp1 ? InputWatch::kHooks : InputWatch::kNode,
                 [weak = weak_from_this(), unit] {
                   if (const auto root = weak.lock()) {
                     root->frozen_use_ended(unit);
                   }
                 });
  }
}

// FSDP2 casts by default. FSDP1 casts the inputs of its root, and those of other units only with
// cast_forward_inputs.
bool Root::casts_inputs(UnitId unit) const {
  const plan::MixedPrecision& mixed = plan_.units[unit].mixed_precision;
  const bool fsdp1 = plan_.plan.dialect == plan::Dialect::kFsdp1;
  return mixed.param_dtype.has_value() &&
         (mixed.cast_forward_inputs.value_or(!fsdp1) || (fsdp1 && unit == 0));
}

// [Note: Recomputation] A forward inside backward is a recomputation of a checkpoint
// (core/module/activation_checkpoint.h). Its graph is discarded, so it needs no views and no hooks
// on outputs. It may stop early, and then has no kPostForward.
void Root::recompute(UnitId unit, Hook hook) {
  const uint32_t forwards = progress_[unit].invocation;
  raise({hook, unit, forwards == 0 ? 0 : forwards - 1, /*grad_mode=*/true, /*recompute=*/true});
}

// Begins the forward of the whole model, or of a unit whose forward is called directly.
void Root::begin_forward(UnitId unit, const HookEvent& event) {
  require_materialized();
  require_frozen_as_sharded();
  if (event.grad_mode) {
    require_optimizer();
  }
  trainer_ = std::this_thread::get_id();
  const RangeScope range(options_.recorder, Range::kRootPreForward);
  adopt_user_grads();
  for (const auto& state : states_) {
    if (FlatParamHandle* handle = state->handle(); handle != nullptr) {
      handle->adopt_user_values();
      drop_stale(state->unit());
      full_before_[state->unit()] = handle->is_full();
    }
  }
  forward_root_ = unit;
  if (event.grad_mode && plan_.plan.views == plan::Views::kFrozen) {
    for (const auto& state : states_) {
      if (state->handle() != nullptr && state->handle()->requires_grad()) {
        make_views(state->unit());
      }
    }
  }
  HookEvent root = event;
  root.hook = Hook::kRootPreForward;
  raise(root);
}

void Root::post_forward(UnitId unit, size_t slot, module::TensorRefs& outputs) {
  Progress& progress = progress_[unit];
  progress.open[slot] = false;
  progress.done[slot] = true;
  const bool grad_mode = at::GradMode::is_enabled();
  const uint32_t invocation = progress.invocation;
  if (grad_mode && !in_backward_) {
    bool visible = false;
    const std::weak_ptr<Root> weak = weak_from_this();
    for (at::Tensor* output : outputs) {
      if (output->defined() && output->requires_grad()) {
        visible = progress.outputs_require_grad = true;
        *output = module::hookable_alias(*output);
        output->register_hook([weak, unit, invocation](const at::Tensor& /*gradient*/) {
          if (const auto root = weak.lock()) {
            root->pre_backward(unit, invocation);
          }
        });
      }
    }
    const FlatParamHandle* handle = states_[unit]->handle();
    if (!visible && handle != nullptr && handle->requires_grad()) {
      progress.open[slot] = true;  // forward_failed() must handle it
      throw UsageError(prefix() + "unit '" + plan_.units[unit].fqn +
                       "': its forward returned no tensor that requires grad, so its backward "
                       "cannot be detected; return a Tensor, or a vector or tuple of tensors");
    }
  }
  if (!std::all_of(progress.done.begin(), progress.done.end(), [](bool done) { return done; })) {
    return;
  }
  // After the hooks, so that they get the gradient of the uncast output, as in PyTorch.
  if (const auto& dtype = plan_.units[unit].mixed_precision.output_dtype; dtype.has_value()) {
    cast(outputs, *dtype);
  }
  if (in_backward_) {
    progress.running = false;
    return recompute(unit, Hook::kPostForward);
  }
  if (unit == forward_root_) {  // also ends units of which not every module ran
    for (UnitId other = 0; other < progress_.size(); ++other) {
      if (other != unit && progress_[other].running) {
        end_forward(other, grad_mode);
      }
    }
  }
  const bool outermost = unit == forward_root_;
  end_forward(unit, grad_mode);
  if (outermost && !grad_mode) {
    executor_->finish_copies(/*all=*/false);
    if (plan_.plan.dialect == plan::Dialect::kFsdp2) {
      hide_unsharded();
    }
    note_kept();
  }
}

void Root::end_forward(UnitId unit, bool grad_mode) {
  Progress& progress = progress_[unit];
  progress.running = false;
  const RangeScope range(options_.recorder, Range::kPostForward, unit);
  HookEvent event{Hook::kPostForward, unit, progress.invocation, grad_mode};
  event.grads = grad_mode && !progress.outputs_require_grad ? Grads::kNone : Grads::kAll;
  raise(event);
  ++progress.invocation;
  if (unit == forward_root_) {
    forward_root_ = kNoUnit;
  }
}

// See [Note: Exceptions].
void Root::forward_failed(UnitId unit, size_t slot) noexcept {
  Progress& progress = progress_[unit];
  if (std::exchange(progress.refused, false) || !progress.open[slot]) {
    return;
  }
  progress.open[slot] = false;
  if (in_backward_) {
    progress.running = false;  // a recomputation that stopped early; a real failure ends backward
    return;
  }
  if (faulted_) {
    return;
  }
  try {
    if (unit == forward_root_) {
      abort();
    } else if (progress.running) {
      end_forward(unit, at::GradMode::is_enabled());
    }
  } catch (const std::exception&) {  // the original exception is being thrown already
  }
}

// Autograd holds it as the final callback of a backward. If it is destroyed without having been
// called, the backward has thrown.
class Root::Backward {
 public:
  Backward(std::weak_ptr<Root> root, std::thread::id trainer)
      : root_(std::move(root)), trainer_(trainer) {}
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;
  ~Backward() {
    if (std::this_thread::get_id() != trainer_) {
      return;  // autograd's thread of a device: the thread that trains may have gone on; settle()
    }
    const auto root = root_.lock();
    if (root == nullptr || !root->in_backward_ || root->faulted_) {
      return;
    }
    try {
      root->abort();
    } catch (const std::exception&) {  // the original exception is being thrown already
    }
  }
  void end() {
    if (const auto root = root_.lock()) {
      root->backward_end();
    }
  }

 private:
  std::weak_ptr<Root> root_;
  std::thread::id trainer_;
};

void Root::pre_backward(UnitId unit, uint32_t invocation) {
  Progress& progress = progress_[unit];
  if (!in_backward_) {
    require_not_summoned();
    in_backward_ = true;
    begin_stepped_norm();
    torch::autograd::Engine::get_default_engine().queue_callback(
        [backward = std::make_shared<Backward>(weak_from_this(), trainer_)] { backward->end(); });
    require_no_stray_use();
    adopt_user_grads();
  }
  if (progress.pre_backward && states_[unit]->handle() != nullptr) {
    return;  // already raised for another output of the same forward
  }
  progress.pre_backward = true;
  const RangeScope range(options_.recorder, Range::kPreBackward, unit);
  raise({Hook::kPreBackward, unit, invocation});
  if (FlatParamHandle* handle = states_[unit]->handle(); handle != nullptr) {
    handle->use_full_again();
  }
}

// The backward of one of several uses of a unit has ended: its parameters can be freed until the
// backward of the next use begins.
void Root::use_ended(UnitId unit) {
  if (!states_[unit]->handle()->awaits_views()) {
    return;  // it was the last use; the accumulator runs next
  }
  progress_[unit].pre_backward = false;
  HookEvent event{Hook::kGradsReady, unit};
  event.grads = Grads::kNone;
  raise(event);
}

void Root::frozen_use_ended(UnitId unit) {
  progress_[unit].pre_backward = false;
  HookEvent event{Hook::kGradsReady, unit};
  event.grads = Grads::kNone;
  raise(event);
}

// [Note: Reduced at the end] FSDP2 detects the end of a unit's backward by the gradients of its
// inputs. If no input requires grad, the post-backward runs in autograd's final callback, in the
// order of the units. For a unit that is used more than once, the accumulator determines the end.
void Root::accumulated(UnitId unit) {
  Progress& progress = progress_[unit];
  if (plan_.plan.dialect == plan::Dialect::kFsdp2 && !progress.inputs_require_grad &&
      progress.invocation == 1) {
    progress.reduced_at_end = true;
    return;
  }
  grads_ready(unit);
}

void Root::grads_ready(UnitId unit) {
  progress_[unit].pre_backward = false;
  HookEvent event{Hook::kGradsReady, unit};
  event.grads = states_[unit]->handle()->unsharded_gradients().empty() ? Grads::kNone : Grads::kAll;
  raise(event);
}

void Root::backward_end() {
  const RangeScope range(options_.recorder, Range::kRootPostBackward);
  for (UnitId unit = 0; unit < progress_.size(); ++unit) {
    if (progress_[unit].reduced_at_end) {
      grads_ready(unit);
    }
  }
  raise({Hook::kBackwardEnd, 0});
  in_backward_ = false;
  reset_progress();
  finish_backward();
}

void Root::finish_backward() {
  if (!last_backward_) {  // the schedule has not waited for the reductions
    try {
      executor_->settle();
    } catch (...) {
      faulted_ = true;
      throw;
    }
  }
  bool stored = false;
  for (const auto& state : states_) {
    if (FlatParamHandle* handle = state->handle(); handle != nullptr) {
      handle->use_shard();  // [Note: Hidden parameters] in root_parameters.cpp; most units are
                            // resharded already
      handle->publish_grads();
      stored = stored || handle->has_grads();
    }
  }
  if (stored) {
    executor_->finish_copies(/*all=*/true);  // an optimizer on the host may write the shards next
  }
  if (plan_.plan.dialect == plan::Dialect::kFsdp1) {
    note_kept();
  }
}

void Root::reset_progress() {
  for (UnitId unit = 0; unit < progress_.size(); ++unit) {
    const size_t modules = plan_.units[unit].modules.size();
    progress_[unit] = {};
    progress_[unit].open.assign(modules, false);
    progress_[unit].done.assign(modules, false);
  }
}

void Root::set_requires_gradient_sync(bool sync) {
  set(0, {.kind = schedule::Setting::Kind::kGradientSync, .flag = sync, .units = {}}, true);
}

void Root::begin_microbatch(bool last) {
  settle();
  const Result<void> done = schedule::begin_microbatch(schedule_, plan_, last);
  if (!done.ok()) {
    throw UsageError(prefix() + done.message());
  }
}

void Root::set(UnitId unit, const schedule::Setting& setting, bool recurse) {
  settle();
  const Result<void> done =
      schedule_.set(unit, setting, recurse ? schedule::Recurse::kYes : schedule::Recurse::kNo);
  if (!done.ok()) {
    throw UsageError(prefix() + done.message());
  }
  if (setting.kind == schedule::Setting::Kind::kLastBackward) {
    last_backward_ = setting.flag;
  }
}

void Root::set_gradient_divide_factor(UnitId unit, double factor) {
  if (plan_.plan.dialect == plan::Dialect::kFsdp1) {
    throw UsageError(prefix() + "unit '" + plan_.units[unit].fqn +
                     "': fsdp1 always divides gradients by the number of ranks");
  }
  plan_.units[unit].gradient_divide_factor = factor;
  if (states_[unit]->handle() != nullptr) {
    states_[unit]->handle()->set_reduction(reduction_of(plan_, unit, gradient_share_));
  }
}

void Root::unshard(UnitId unit, Hook hook) {
  settle();
  FlatParamHandle* handle = states_[unit]->handle();
  if (handle == nullptr) {
    return;
  }
  if (hook == Hook::kUnshard && forward_root_ == kNoUnit && !in_backward_) {
    handle->adopt_user_values();
    drop_stale(unit);
  }
  raise({hook, unit});
  if (hook == Hook::kReshard) {
    executor_->finish_copies(/*all=*/false);
  }
  if (hook == Hook::kWaitUnshard && !handle->is_full()) {
    handle->use_full(/*edges=*/false);  // hidden after an evaluation
  }
}

void Root::optimizer_done() {
  settle();
  raise({Hook::kOptimizerDone, 0});
  announces_steps_ = true;
  for (const auto& state : states_) {
    if (state->handle() != nullptr) {
      state->handle()->values_written();
    }
  }
}

int64_t Root::unsharded_bytes() const {
  int64_t bytes = 0;
  for (const auto& state : states_) {
    bytes += state->handle() == nullptr ? 0 : state->handle()->unsharded_bytes();
  }
  return bytes;
}

}  // namespace shardlens::fsdp
