#include "core/fsdp/run/root.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "core/base/error.h"
#include "core/fsdp/run/input_watch.h"
#include "core/mesh/mesh.h"
#include "core/module/scalar_type.h"

namespace shardlens::fsdp {
namespace {

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
    : units_(std::move(plan), options, std::move(states)),
      schedule_(std::move(schedule)),
      progress_(units_.states().size()),
      full_before_(units_.states().size(), false) {
  if (options.recorder != nullptr) {
    std::vector<std::string> names;
    for (const plan::Unit& unit : units_.plan().units) {
      names.push_back(unit.fqn);
    }
    options.recorder->units(names);
    options.recorder->groups(mesh::names_of(units_.plan().groups));
  }
  reset_progress();
  if (options.check_ledger) {
    ledger_ = std::make_unique<schedule::Ledger>(specs_of(units_.plan(), units_.states()),
                                                 options_of(units_.plan(), options));
  }
}

void Root::raise(const HookEvent& event) {
  if (units_.recorder() != nullptr) {
    units_.recorder()->hook(event);
  }
  shadow_.remember(event);
  if (event.hook != Hook::kGradsReady) {
    units_.executor().enter();
  }
  schedule::ActionList actions;
  const Result<void> planned = schedule_.on(event, actions);
  if (!planned.ok()) {
    throw RuntimeFault(units_.prefix() + planned.message());
  }
  // The ledger gets all actions first: after a failure the schedule assumes that all were executed,
  // so the ledger must too.
  for (const schedule::Action& action : actions) {
    const Result<void> kept = ledger_ == nullptr ? Result<void>() : ledger_->consume(action);
    if (!kept.ok()) {
      throw RuntimeFault(units_.prefix() + kept.message());
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
      const RangeScope range(units_.recorder(), Range::kPostBackwardReshard, event.unit);
      for (; i < actions.size() && reshards(actions[i].op); ++i) {
        execute(actions[i], event);
      }
    }
    if (i < actions.size()) {
      const RangeScope range(units_.recorder(), Range::kPostBackwardReduce, event.unit);
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
  if (action.op == schedule::Op::kUseFull && forward && event.grad_mode && !shadow_.replaying() &&
      units_.handle(action.unit)->requires_grad() &&
      (units_.plan().plan.views == plan::Views::kFresh ||
       !units_.handle(action.unit)->has_views())) {
    make_views(action.unit);
  }
  // Parameters that the user unshards between steps are not part of a graph.
  const bool edges = forward ? event.grad_mode : event.hook != Hook::kWaitUnshard;
  units_.executor().execute(action, edges && !shadow_.replaying());
}

// See [Note: When the node is made].
void Root::make_views(UnitId unit) {
  std::function<void()> ended;
  // FSDP2 detects the end of a use's backward by the gradients of its inputs; FSDP1 does not detect
  // it. Frozen views are shared by all uses.
  if (units_.plan().plan.views == plan::Views::kFresh &&
      units_.plan().plan.dialect == plan::Dialect::kFsdp2 && progress_[unit].inputs_require_grad) {
    ended = [weak = weak_from_this(), unit] {
      if (const auto root = weak.lock()) {
        root->use_ended(unit);
      }
    };
  }
  units_.handle(unit)->make_views(std::move(ended));
}

void Root::pre_forward(UnitId unit, size_t slot, module::TensorRefs& inputs) {
  settle();
  const plan::Unit& spec = units_.plan().units[unit];
  Progress& progress = progress_[unit];
  if (progress.open[slot]) {
    progress.refused = true;
    throw UsageError(units_.prefix() + "unit '" + spec.fqn +
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
  gathered_.forget();
  const HookEvent event{Hook::kPreForward, unit, progress.invocation, at::GradMode::is_enabled()};
  if (forward_root_ == kNoUnit) {
    begin_forward(unit, event);
  }
  {
    const RangeScope range(units_.recorder(), Range::kPreForward, unit);
    raise(event);
  }
  const FlatParamHandle* handle = units_.handle(unit);
  const bool fsdp1 = units_.plan().plan.dialect == plan::Dialect::kFsdp1;
  // FSDP1 watches the first of several uses, whose backward comes last.
  const bool watches = !fsdp1 || !progress.watched;
  if (event.grad_mode && handle != nullptr && !handle->requires_grad() && watches) {
    progress.watched = true;
    watch_inputs(inputs, fsdp1 ? InputWatch::kHooks : InputWatch::kNode,
                 [weak = weak_from_this(), unit] {
                   if (const auto root = weak.lock()) {
                     root->no_more_gradients(unit);
                   }
                 });
  }
}

// FSDP2 casts by default. FSDP1 casts the inputs of its root, and those of other units only with
// cast_forward_inputs.
bool Root::casts_inputs(UnitId unit) const {
  const plan::MixedPrecision& mixed = units_.plan().units[unit].mixed_precision;
  const bool fsdp1 = units_.plan().plan.dialect == plan::Dialect::kFsdp1;
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
  units_.require_materialized();
  units_.require_frozen_as_sharded();
  if (event.grad_mode) {
    clip_.require_optimizer();
  }
  trainer_ = std::this_thread::get_id();
  const RangeScope range(units_.recorder(), Range::kRootPreForward);
  units_.adopt_user_grads();
  for (const auto& [each, handle] : units_.with_parameters()) {
    handle.adopt_user_values();
    drop_stale(each);
    full_before_[each] = handle.is_full();
  }
  forward_root_ = unit;
  if (event.grad_mode && units_.plan().plan.views == plan::Views::kFrozen) {
    for (const auto& [each, handle] : units_.with_parameters()) {
      if (handle.requires_grad()) {
        make_views(each);
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
    const FlatParamHandle* handle = units_.handle(unit);
    if (!visible && handle != nullptr && handle->requires_grad()) {
      progress.open[slot] = true;  // forward_failed() must handle it
      throw UsageError(units_.prefix() + "unit '" + units_.plan().units[unit].fqn +
                       "': its forward returned no tensor that requires grad, so its backward "
                       "cannot be detected; return a Tensor, or a vector or tuple of tensors");
    }
  }
  if (!std::all_of(progress.done.begin(), progress.done.end(), [](bool done) { return done; })) {
    return;
  }
  // After the hooks, so that they get the gradient of the uncast output, as in PyTorch.
  if (const auto& dtype = units_.plan().units[unit].mixed_precision.output_dtype;
      dtype.has_value()) {
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
    units_.executor().finish_copies(/*all=*/false);
    if (units_.plan().plan.dialect == plan::Dialect::kFsdp2) {
      hide_unsharded();
    }
    note_kept();
  }
}

void Root::end_forward(UnitId unit, bool grad_mode) {
  Progress& progress = progress_[unit];
  progress.running = false;
  const RangeScope range(units_.recorder(), Range::kPostForward, unit);
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

void Root::reset_progress() {
  for (UnitId unit = 0; unit < progress_.size(); ++unit) {
    const size_t modules = units_.plan().units[unit].modules.size();
    progress_[unit] = {};
    progress_[unit].open.assign(modules, false);
    progress_[unit].done.assign(modules, false);
  }
}

void Root::set_requires_gradient_sync(bool sync) {
  syncs_ = sync;
  set(0, {.kind = schedule::Setting::Kind::kGradientSync, .flag = sync, .units = {}}, true);
}

void Root::begin_microbatch(bool last) {
  settle();
  const Result<void> done = schedule::begin_microbatch(schedule_, units_.plan(), last);
  if (!done.ok()) {
    throw UsageError(units_.prefix() + done.message());
  }
  const plan::Finalization ended = units_.plan().plan.backward_finalization;
  last_backward_ = ended == plan::Finalization::kAutomatic ? last_backward_ : last;
  syncs_ = syncs_ && ended != plan::Finalization::kReduces;
}

void Root::set(UnitId unit, const schedule::Setting& setting, bool recurse) {
  settle();
  const Result<void> done =
      schedule_.set(unit, setting, recurse ? schedule::Recurse::kYes : schedule::Recurse::kNo);
  if (!done.ok()) {
    throw UsageError(units_.prefix() + done.message());
  }
  if (setting.kind == schedule::Setting::Kind::kLastBackward) {
    last_backward_ = setting.flag;
  }
}

void Root::unshard(UnitId unit, Hook hook) {
  settle();
  FlatParamHandle* handle = units_.handle(unit);
  if (handle == nullptr) {
    return;
  }
  if (hook == Hook::kUnshard && forward_root_ == kNoUnit && !in_backward_) {
    handle->adopt_user_values();
    drop_stale(unit);
  }
  raise({hook, unit});
  if (hook == Hook::kReshard) {
    units_.executor().finish_copies(/*all=*/false);
  }
  if (hook == Hook::kWaitUnshard && !handle->is_full()) {
    handle->use_full(/*edges=*/false);  // hidden after an evaluation
  }
}

void Root::optimizer_done() {
  settle();
  raise({Hook::kOptimizerDone, 0});
  announces_steps_ = true;
  units_.values_written();
}

void Root::set_optimizer_in_backward(OptimizerInBackward optimizer) {
  settle();
  clip_.set_optimizer_in_backward(std::move(optimizer));
}

at::Tensor Root::issue_clip_grad_norm(double max_norm, double norm_type) {
  settle();
  units_.adopt_user_grads();
  return clip_.issue(max_norm, norm_type);
}

void Root::zero_grad() {
  settle();
  units_.zero_grad();
}

std::vector<ParameterSlice> Root::slices() const {
  gathered_.require_hidden();
  return units_.slices();
}

at::Tensor Root::full_parameter(uint32_t parameter) {
  gathered_.require_hidden();
  units_.require_materialized();
  return gathered_.parameter(parameter);
}

void Root::summon(const std::vector<UnitId>& units, const SummonOptions& options) {
  if (gathered_.are_shown()) {
    throw UsageError(units_.prefix() +
                     "cannot unshard parameters: another scope of full parameters is open");
  }
  settle();
  if (forward_root_ != kNoUnit || in_backward_) {
    throw UsageError(units_.prefix() + "cannot unshard parameters during a forward or backward");
  }
  units_.require_materialized();
  units_.adopt_user_grads();
  gathered_.require_showable(units, options);
  for (const UnitId unit : units) {
    if (FlatParamHandle* handle = units_.handle(unit); handle != nullptr) {
      handle->adopt_user_values();
      if (handle->is_full()) {
        raise({Hook::kReshard, unit});
      }
    }
  }
  gathered_.show(units, options);
}

void Root::shadow_microbatch() {
  settle();
  shadow_.require_remembered();
  units_.adopt_user_grads();
  for (const auto& [unit, handle] : units_.with_parameters()) {
    handle.adopt_user_values();
    drop_stale(unit);
  }
  clip_.begin_backward();
  clip_.require_optimizer();
  shadow_.replay([this](const HookEvent& event) { raise(event); });
  finish_backward();
}

void Root::divide_gradients_by(int64_t ranks) {
  settle();
  units_.divide_gradients_by(ranks);
}

void Root::drop_stale(UnitId unit) {
  if (!units_.handle(unit)->storage().is_stale()) {
    return;
  }
  if (schedule_.state(unit) == schedule::UnitState::kUnsharding) {
    raise({Hook::kWaitUnshard, unit});  // gathered ahead, and not used
  }
  raise({Hook::kReshard, unit});
}

// [Note: Hidden parameters] A backward, or a forward without gradients, may leave units unsharded.
// Their parameters become slices anyway, so that optimizers, loads and other writes reach the
// shard; the next forward uses the unsharded ones again, unless the shard has changed. In FSDP1 the
// schedule does this.
void Root::hide_unsharded() {
  for (const auto& [unit, handle] : units_.with_parameters()) {
    if (!full_before_[unit]) {
      handle.use_shard();
    }
  }
}

// [Note: Kept and stepped] A unit may stay unsharded after an evaluation (reshard_after_forward
// false) or a backward of FSDP1 without sync. If an optimizer steps then, the next forward must
// gather it again. torch::optim::SGD writes through data(), which no version counter shows.
// optimizer_done() does; in a program that does not call it, a kept unit with gradients counts as
// stepped. PyTorch computes with the old values there. With reshard_after_backward false the
// program itself says which backward is the last before the optimizer.
void Root::note_kept() {
  for (const auto& [unit, handle] : units_.with_parameters()) {
    if (!announces_steps_ && handle.gradient().exists()) {
      handle.storage().values_written();
    }
  }
}

}  // namespace shardlens::fsdp
