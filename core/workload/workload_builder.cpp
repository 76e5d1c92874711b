#include "core/workload/workload_builder.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/workload/differentiated.h"
#include "core/workload/host_launches.h"
#include "core/workload/routing.h"

namespace shardlens::plan {
namespace {

constexpr int64_t kFlopsPerMultiplyAdd = 2;
constexpr Bytes kIndexBytes = 8;

}  // namespace

WorkloadBuilder::WorkloadBuilder(const ResolvedPlan& plan, int64_t batch, int64_t seq)
    : plan_(plan), rows_(batch * seq), entered_(plan.units.size(), 0) {
  out_.batch = batch;
  out_.seq = seq;
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    for (const uint32_t module : plan.units[id].modules) {
      unit_of_module_.emplace(plan.tree.modules[module].fqn, id);
    }
  }
  const std::vector<bool> differentiated = differentiated_parameters(plan);
  for (size_t i = 0; i < differentiated.size(); ++i) {
    const Parameter& parameter = plan.tree.parameters[i];
    if (!differentiated[i]) {
      frozen_.insert(parameter.fqn);
      frozen_.insert(parameter.aliases.begin(), parameter.aliases.end());
    }
  }
  requires_grad_ = frozen_.empty();
  for (const uint32_t block : plan.tree.blocks) {
    blocks_.insert(plan.tree.modules[block].fqn);
  }
  for (const uint32_t module : plan.checkpointed_modules) {
    checkpointed_.insert(plan.tree.modules[module].fqn);
  }
}

void WorkloadBuilder::enter(const std::string& module) {
  const auto found = unit_of_module_.find(module);
  if (found == unit_of_module_.end()) {
    SHARDLENS_CHECK(!open_.empty(), "the root is always a unit");
    open_.push_back({module, current_unit(), false});
    begin_block();
    begin_checkpoint();
    return;
  }
  const UnitId unit = found->second;
  const size_t before = entered_[unit]++;
  if (unit == 0) {
    hook(Hook::kRootPreForward, 0);
  }
  if (before == 0) {
    hook_of_groups(Hook::kPreForward, unit);
  }
  open_.push_back({module, unit, before + 1 == plan_.units[unit].modules.size()});
  begin_block();
  begin_checkpoint();
}

// Called after the kPreForward hook of the module's own unit, whose hooks do not run again.
void WorkloadBuilder::begin_checkpoint() {
  if (!in_checkpoint_ && checkpointed_.contains(open_.back().module)) {
    in_checkpoint_ = open_.back().begins_checkpoint = true;
    checkpoints_.push_back({.begin = out_.order.size()});
  }
}

void WorkloadBuilder::leave() {
  if (open_.back().is_block && compiles()) {
    close_compiled_block();
  }
  const Open closed = std::move(open_.back());
  open_.pop_back();
  open_blocks_ -= closed.is_block ? 1 : 0;
  if (closed.begins_checkpoint) {
    in_checkpoint_ = false;
    checkpoints_.back().end = out_.order.size();
  }
  if (closed.ends_unit) {
    hook_of_groups(Hook::kPostForward, closed.unit);
  }
}

bool WorkloadBuilder::fuses() const {
  const UnitId unit = open_.empty() ? 0 : current_unit();
  return program_ == Program::kEngine || compiles() ||
         (program_ == Program::kEngineOnCpu && plan_.param_dtype(unit) == DType::kF32);
}

Operator WorkloadBuilder::make(OperatorKind kind, std::string_view name) const {
  if (head_) {
    throw InputError("loss_chunks",
                     "the model computes more with its logits before the loss, which is not "
                     "described in parts; expected 1");
  }
  Operator op;
  op.kind = kind;
  op.unit = open_.empty() ? 0 : current_unit();  // a loss outside of the model
  op.name = name;
  op.module = open_.empty() ? "" : open_.back().module;
  op.dtype = plan_.param_dtype(op.unit);
  return op;
}

void WorkloadBuilder::append(Operator op) {
  out_.order.push_back(
      {WorkloadItem::Kind::kOperator, static_cast<uint32_t>(out_.operators.size())});
  out_.operators.push_back(std::move(op));
}

bool WorkloadBuilder::is_frozen(std::string_view parameter) const {
  return !frozen_.empty() && frozen_.contains(open_.back().module + "." + std::string(parameter));
}

// In kPreForward and kPostForward, `grads` is kNone if the unit's input or output, respectively,
// does not require grad.
void WorkloadBuilder::hook(Hook hook, UnitId unit, bool recompute) {
  HookEvent event;
  event.hook = hook;
  event.unit = unit;
  event.recompute = recompute;
  const bool forward = hook == Hook::kPreForward || hook == Hook::kPostForward;
  event.grads = forward && !recompute && !requires_grad_ ? Grads::kNone : Grads::kAll;
  out_.order.push_back({WorkloadItem::Kind::kHook, static_cast<uint32_t>(out_.hooks.size())});
  out_.hooks.push_back(event);
}

void WorkloadBuilder::hook_of_groups(Hook each, UnitId unit) {
  for (uint32_t group = 0; group < plan_.units[unit].groups; ++group) {
    hook(each, unit + group);
  }
}

void WorkloadBuilder::forward(Operator op,
                              Bytes input,
                              std::vector<Operator> backward,
                              bool trains) {
  requires_grad_ = requires_grad_ || trains;
  if (!requires_grad_) {
    backward.clear();
    op.saved = 0;
  }
  const auto index = static_cast<int32_t>(out_.operators.size());
  kept_.push_back(op.saved);
  results_.push_back(0);
  if (in_checkpoint_) {
    Checkpoint& checkpoint = checkpoints_.back();
    if (requires_grad_ && (op.kind != OperatorKind::kElementwise || op.saved > 0)) {
      checkpoint.last_kept = out_.order.size();
      checkpoint.keeps = true;
    }
    if (std::exchange(checkpoint.empty, false)) {
      checkpoint.input = input;
    }
    // Of an operator that backward comes to: its `saved` lives until then.
    op.saved = backward.empty() ? 0 : std::exchange(checkpoint.input, 0);
    results_.back() = backward.empty() ? 0 : result_to_keep(op, checkpoint);
    op.saved += results_.back();
  }
  for (Operator& each : backward) {
    each.phase = Phase::kBackward;
    each.forward = index;
  }
  append(std::move(op));
  backward_.push_back(std::move(backward));
}

Bytes WorkloadBuilder::result_to_keep(const Operator& op, Checkpoint& checkpoint) const {
  const CheckpointSaves& saves = plan_.plan.checkpointing_saves;
  if (op.kind == OperatorKind::kAttention) {
    return saves.attention ? op.written : 0;
  }
  if (routes_ || (op.name != "aten::mm" && op.name != "aten::addmm")) {
    return 0;
  }
  switch (saves.products) {
    case CheckpointSaves::Products::kNone:
      return 0;
    case CheckpointSaves::Products::kAll:
      return op.written;
    case CheckpointSaves::Products::kEverySecond:
      break;
  }
  return ++checkpoint.products % 2 == 1 ? op.written : 0;
}

// Autograd adds the gradients of a tensor with several consumers one by one.
Operator WorkloadBuilder::gradient_sum(int64_t features) const {
  Operator sum = make(OperatorKind::kElementwise, "aten::add");
  const Bytes values = rows_ * features * size_of(sum.dtype);
  sum.flops = rows_ * features;
  sum.read = 2 * values;
  sum.written = values;
  return sum;
}

void WorkloadBuilder::linear(const std::string& module, const Linear& shape) {
  enter(module);
  linear(shape);
  leave();
}

void WorkloadBuilder::linear(const Linear& shape) {
  Operator op = make(OperatorKind::kGemm, shape.bias ? "aten::addmm" : "aten::mm");
  const Bytes element = size_of(op.dtype);
  const auto gemm = [&](std::string_view name, int64_t m, int64_t n, int64_t k) {
    Operator out = make(OperatorKind::kGemm, name);
    out.m = m;
    out.n = n;
    out.k = k;
    out.flops = kFlopsPerMultiplyAdd * m * n * k;
    out.read = (m * k + k * n) * element;
    out.written = m * n * element;
    return out;
  };
  op = gemm(op.name, rows_, shape.out, shape.in);
  op.read += shape.bias ? shape.out * element : 0;
  const bool trains_weight = !is_frozen("weight");
  const bool trains_bias = shape.bias && !is_frozen("bias");
  const bool unkept = shape.keeps_input || unkept_input_;
  op.saved = trains_weight && unkept ? rows_ * shape.in * element : 0;
  unkept_input_ = !trains_weight && unkept;

  // The order of the two gradients in autograd's formulas: mm computes the gradient of its second
  // argument first, addmm that of its first matrix.
  Operator input = gemm("aten::mm", rows_, shape.in, shape.out);
  Operator weight = shape.transposed ? gemm("aten::mm", shape.out, shape.in, rows_)
                                     : gemm("aten::mm", shape.in, shape.out, rows_);
  std::vector<Operator> backward;
  if (trains_weight && !shape.bias) {
    backward.push_back(weight);
  }
  if (requires_grad_ && shape.input_grad) {
    backward.push_back(std::move(input));
  }
  if (trains_weight && shape.bias) {
    backward.push_back(std::move(weight));
  }
  if (trains_bias) {
    Operator bias = make(OperatorKind::kElementwise, "aten::sum");
    bias.flops = rows_ * shape.out;
    bias.read = rows_ * shape.out * element;
    bias.written = shape.out * element;
    backward.push_back(std::move(bias));
  }
  cast_products(shape, op, backward);
  if (compiles()) {
    compiled_linear(shape, backward);
  } else if (shape.sums_input_grad && requires_grad_) {
    backward.push_back(gradient_sum(shape.in));
  }
  routes_ = shape.routes;
  forward(std::move(op), rows_ * shape.in * element, std::move(backward),
          trains_weight || trains_bias);
  routes_ = false;
  compiled_result(rows_ * shape.out * element);
}

void WorkloadBuilder::grouped_linear(const Grouped& shape) {
  const int64_t rows = rows_ * shape.per_token;
  const auto [chosen, of_each] = route(rows, shape.experts, expert_skew_);
  Operator op =
      make(OperatorKind::kGemm, is_engine() ? "shardlens::grouped_mm" : "aten::_grouped_mm");
  const Bytes element = size_of(op.dtype);
  const Bytes weights = chosen * shape.in * shape.out * element;
  const Bytes inputs = rows * shape.in * element, outputs = rows * shape.out * element;
  op.batch = chosen;
  op.m = of_each;
  op.n = shape.out;
  op.k = shape.in;
  op.flops = kFlopsPerMultiplyAdd * rows * shape.in * shape.out;
  op.read = inputs + weights;
  op.written = outputs;
  const bool trains = !is_frozen(shape.weight);
  op.saved = trains && shape.keeps_input ? inputs : 0;
  std::vector<Operator> backward;
  if (trains) {
    Operator& weight = backward.emplace_back(op);
    weight.m = shape.in;
    weight.n = shape.out;
    weight.k = of_each;
    weight.read = inputs + outputs;
    weight.written = shape.experts * shape.in * shape.out * element;
  }
  if (requires_grad_) {
    Operator& input = backward.emplace_back(op);
    input.n = shape.in;
    input.k = shape.out;
    input.read = outputs + weights;
    input.written = inputs;
  }
  for (Operator& each : backward) {
    each.saved = 0;
  }
  if (shape.sums_input_grad && requires_grad_) {
    backward.push_back(gradient_sum(shape.per_token * shape.in));
  }
  forward(std::move(op), inputs, std::move(backward), trains);
  if (!shape.bias) {
    return;
  }
  if (!is_engine()) {  // the bias of each row's expert
    Operator index = make(OperatorKind::kElementwise, "aten::index");
    index.read = index.written = outputs;
    forward(index, outputs, {});
  }
  Operator add = make(OperatorKind::kElementwise, "aten::add");
  add.flops = rows * shape.out;
  add.read = 2 * outputs;
  add.written = outputs;
  Operator sum = make(OperatorKind::kElementwise, "aten::index_put");
  sum.flops = rows * shape.out;
  sum.read = outputs;
  sum.written = shape.experts * shape.out * element;
  const bool trains_bias = !is_frozen(std::string(shape.weight) + "_bias");
  forward(add, add.read, trains_bias ? std::vector{sum} : std::vector<Operator>(), trains_bias);
}

// The weight of the innermost entered module, if other modules have it too.
const Parameter* WorkloadBuilder::tied_table() const {
  const std::string name = open_.back().module + ".weight";
  for (const Parameter& parameter : plan_.tree.parameters) {
    if (parameter.fqn == name && !parameter.aliases.empty()) {
      return &parameter;
    }
  }
  return nullptr;
}

void WorkloadBuilder::embedding(int64_t features) {
  Operator op = make(OperatorKind::kEmbedding, "aten::embedding");
  const Bytes values = rows_ * features * size_of(op.dtype);
  op.read = values + rows_ * kIndexBytes;
  op.written = values;
  op.saved = rows_ * kIndexBytes;
  Operator grad = make(OperatorKind::kEmbedding, "aten::embedding_dense_backward");
  grad.flops = rows_ * features;
  grad.read = op.read;
  grad.written = values;
  if (const Parameter* table = is_engine() ? nullptr : tied_table()) {
    grad.m = table->shape.front();
    grad.n = table->shape.back();
  }
  const bool trains = !is_frozen("weight");
  forward(op, rows_ * kIndexBytes, trains ? std::vector{grad} : std::vector<Operator>(), trains);
}

void WorkloadBuilder::norm(std::string_view name, std::string_view backward, const Norm& shape) {
  if (compiles()) {
    return shape.groups > 1 ? compiled_head_norm(shape) : compiled_norm(name, shape);
  }
  const bool titan = program_ == Program::kTorchtitan && shape.statistics == 1;
  Operator op = make(OperatorKind::kNorm, titan ? "aten::_fused_rms_norm" : name);
  const bool trains =
      (shape.weights > 0 && !is_frozen("weight")) || (shape.weights > 1 && !is_frozen("bias"));
  if (shape.statistics == 1 && !titan && !fuses()) {
    unfused(shape.offset ? unfused_offset_rms_norm()
            : shape.wide ? unfused_wide_rms_norm()
                         : unfused_rms_norm(),
            OperatorKind::kNorm, shape.features, shape.groups, shape.sums_input_grad, trains);
    return;
  }
  const int64_t rows = rows_ * shape.groups;
  const Bytes values = rows * shape.features * size_of(op.dtype);
  const Bytes parameters = shape.weights * shape.features * size_of(op.dtype);
  const Bytes kept = rows * shape.statistics * size_of(DType::kF32);
  op.flops = 4 * rows * shape.features;
  op.read = values + parameters;
  op.written = values + kept;
  op.saved = values + kept;
  Operator grad = make(OperatorKind::kNorm, titan ? "aten::_fused_rms_norm_backward" : backward);
  grad.flops = 8 * rows * shape.features;
  grad.read = 2 * values + kept + parameters;
  grad.written = values + parameters;
  std::vector<Operator> backward_operators{grad};
  if (shape.sums_input_grad && requires_grad_) {
    backward_operators.push_back(gradient_sum(shape.features));
  }
  forward(op, values, std::move(backward_operators), trains);
}

void WorkloadBuilder::elementwise(std::string_view name,
                                  std::string_view backward,
                                  const Elementwise& shape) {
  Operator op = make(OperatorKind::kElementwise, name);
  const Bytes element = size_of(op.dtype);
  op.flops = rows_ * shape.flops;
  op.read = rows_ * shape.read * element;
  op.written = rows_ * shape.written * element;
  op.saved = rows_ * shape.saved * element;
  compiled_.of_norm = false;
  compiled_result(op.written);
  if (backward.empty()) {
    forward(op, op.read, {});
    return;
  }
  Operator grad = make(OperatorKind::kElementwise, backward);
  grad.flops = rows_ * shape.backward_flops;
  grad.read = rows_ * shape.backward_read * element;
  grad.written = rows_ * shape.backward_written * element;
  forward(op, op.read, {grad});
}

void WorkloadBuilder::add(int64_t features) {
  if (compiles()) {
    return compiled_add(features);
  }
  elementwise("aten::add", "", {.read = 2 * features, .written = features, .flops = features});
}

// Saves its input for backward, except ReLU, which saves its result.
void WorkloadBuilder::activation(std::string_view name, int64_t features) {
  if (!is_engine() && !compiles() && name == "gelu_new") {
    unfused(unfused_gelu(), OperatorKind::kElementwise, features);
    return;
  }
  const Elementwise shape{.read = features,
                          .written = features,
                          .saved = features,
                          .flops = 8 * features,
                          .backward_read = 2 * features,
                          .backward_written = features,
                          .backward_flops = 10 * features};
  if (name == "relu") {
    elementwise("aten::relu", "aten::threshold_backward", shape);
  } else if (name == "silu") {
    elementwise("aten::silu", "aten::silu_backward", shape);
  } else {
    elementwise("aten::gelu", "aten::gelu_backward", shape);
  }
}

void WorkloadBuilder::silu_multiply(int64_t features) {
  if (!fuses()) {
    unfused(unfused_silu_multiply(), OperatorKind::kElementwise, features);
    return;
  }
  elementwise("shardlens::silu_multiply", "shardlens::silu_multiply_backward",
              {.read = 2 * features,
               .written = features,
               .saved = 2 * features,
               .flops = 9 * features,
               .backward_read = 3 * features,
               .backward_written = 2 * features,
               .backward_flops = 14 * features});
}

void WorkloadBuilder::rotary(int64_t features, bool complex) {
  if (compiles() && !complex) {
    return compiled_rotary(features);
  }
  if (!fuses() || complex) {
    const DType dtype = plan_.param_dtype(current_unit());
    unfused(complex       ? unfused_complex_rotary(dtype)
            : is_engine() ? unfused_rotary_of_engine()
                          : unfused_rotary(),
            OperatorKind::kElementwise, features);
    return;
  }
  elementwise("shardlens::rotary", "shardlens::rotary_backward",
              {.read = features,
               .written = features,
               .flops = 3 * features,
               .backward_read = features,
               .backward_written = features,
               .backward_flops = 3 * features});
}

void WorkloadBuilder::record(Operator op, std::vector<Operator> backward) {
  const Bytes input = op.read;
  const bool trains = !backward.empty();
  forward(std::move(op), input, std::move(backward), trains);
}

// Repeats the operators before the last one that saves a tensor. What that one saves is counted at
// the operator before it. torchtitan's checkpoints do not stop early: all are repeated, except by
// compiled code, which computes only what backward reads. An operator
// whose result was kept has nothing to do.
void WorkloadBuilder::recompute(const Checkpoint& checkpoint,
                                const std::vector<WorkloadItem>& forward_order) {
  const bool whole = program_ == Program::kTorchtitan && out_.software.compile == Compile::kNone;
  bool repeated = false;
  for (size_t i = checkpoint.begin; i < (whole ? checkpoint.end : checkpoint.last_kept); ++i) {
    const uint32_t index = forward_order[i].index;
    if (forward_order[i].kind == WorkloadItem::Kind::kHook) {
      const HookEvent event = out_.hooks[index];
      hook(event.hook, event.unit, /*recompute=*/true);
      continue;
    }
    Operator op = out_.operators[index];
    op.phase = Phase::kRecompute;
    op.forward = static_cast<int32_t>(index);
    // A fused operator saves its input, which is saved already.
    const Bytes input = op.saved - results_[index];
    op.saved = program_ == Program::kTransformers ? kept_[index]
                                                  : std::max<Bytes>(kept_[index] - input, 0);
    if (results_[index] > 0) {
      op.frees = results_[index];
      op.flops = op.read = op.written = 0;
    }
    append(std::move(op));
    repeated = true;
  }
  if (repeated && !whole) {
    out_.operators.back().saved += kept_[forward_order[checkpoint.last_kept].index];
  }
}

// The backward of a frozen unit ends when the gradients of its inputs are computed; it has no
// backward if its inputs do not require grad.
void WorkloadBuilder::grads_ready(const HookEvent& pre_forward) {
  const bool frozen = plan_.is_frozen(pre_forward.unit);
  if (frozen && pre_forward.grads == Grads::kNone) {
    return;
  }
  hook(Hook::kGradsReady, pre_forward.unit);
  if (frozen) {
    out_.hooks.back().grads = Grads::kNone;
  }
}

void WorkloadBuilder::finish_backward() {
  SHARDLENS_CHECK(open_.empty(), "a module is still open");
  close_compiled_block();
  const std::vector<WorkloadItem> forward_order = out_.order;
  std::unordered_map<uint32_t, const Checkpoint*> ends;  // by the last operator that saves a tensor
  for (const Checkpoint& checkpoint : checkpoints_) {
    if (checkpoint.keeps) {
      ends.emplace(forward_order[checkpoint.last_kept].index, &checkpoint);
    }
  }
  // The loss is last in forward, so its backward runs before the backward of any unit.
  for (auto item = forward_order.rbegin(); item != forward_order.rend(); ++item) {
    if (item->kind == WorkloadItem::Kind::kOperator) {
      if (const auto end = ends.find(item->index); end != ends.end()) {
        recompute(*end->second, forward_order);
      }
      for (Operator& op : backward_[item->index]) {
        append(std::move(op));
      }
      continue;
    }
    const HookEvent event = out_.hooks[item->index];
    if (event.hook == Hook::kPostForward && event.grads != Grads::kNone) {
      if (plan_.units[event.unit].group == 0) {
        hook_of_groups(Hook::kPreBackward, event.unit);
      }
    } else if (event.hook == Hook::kPreForward && !plan_.units[event.unit].parameters.empty()) {
      grads_ready(event);
    }
  }
  hook(Hook::kBackwardEnd, 0);
}

void WorkloadBuilder::optimizer(const StepSettings& settings) {
  for (Operator& op : optimizer_operators(plan_, settings)) {
    append(std::move(op));
  }
  out_.in_backward = operators_in_backward(plan_, unit_sizes(plan_), settings);
  hook(Hook::kOptimizerDone, 0);
  set_launches(plan_.tree, out_);
}

int64_t tokens_of(const StepSettings& settings) {
  require_valid(settings, "");
  if (!settings.seq) {
    throw InputError("", "seq is missing: the model takes tokens; expected the number per sample");
  }
  return *settings.seq;
}

}  // namespace shardlens::plan
