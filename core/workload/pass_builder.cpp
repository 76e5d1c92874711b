#include "core/workload/pass_builder.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/plan/divided_weights.h"
#include "core/plan/unit_sizes.h"
#include "core/workload/differentiated.h"
#include "core/workload/host_launches.h"
#include "core/workload/optimizer_operators.h"

namespace shardlens::plan {

PassBuilder::PassBuilder(const ResolvedPlan& plan, int64_t batch, int64_t seq)
    : plan_(plan),
      divided_dimensions_(divided_weights(plan)),
      rows_(batch * seq),
      entered_(plan.units.size(), 0) {
  out_.batch = batch;
  out_.seq = seq;
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    for (const uint32_t module : plan.units[id].modules) {
      unit_of_module_.emplace(plan.tree.modules[module].fqn, id);
    }
    if (plan.units[id].group > 0) {
      for (const uint32_t parameter : plan.units[id].parameters) {
        const uint32_t module = plan.tree.parameters[parameter].module;
        second_group_of_module_.emplace(plan.tree.modules[module].fqn, id);
      }
    }
  }
  for (const Parameter& parameter : plan.tree.parameters) {
    constexpr std::string_view kFirst = ".lora_A";
    const std::string& fqn = plan.tree.modules[parameter.module].fqn;
    if (fqn.ends_with(kFirst)) {
      const std::string layer = fqn.substr(0, fqn.size() - kFirst.size());
      adapter_ranks_[layer] = parameter.shape.front();
      divided_dimensions_.erase(fqn);  // WorkloadBuilder::adapt() divides both products
      divided_dimensions_.erase(layer + ".lora_B");
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
    blocks_.emplace(plan.tree.modules[block].fqn, std::ssize(blocks_));
  }
  for (const uint32_t module : plan.checkpointed_modules) {
    checkpointed_.insert(plan.tree.modules[module].fqn);
  }
}

void PassBuilder::enter(const std::string& module) {
  const auto block = blocks_.find(module);
  const bool is_block = block != blocks_.end();
  const bool in_tail = is_block && block->second >= std::ssize(blocks_) - out_.software.matmul_tail;
  open_blocks_ += is_block ? 1 : 0;
  open_tail_ += in_tail ? 1 : 0;
  const auto found = unit_of_module_.find(module);
  if (found == unit_of_module_.end()) {
    SHARDLENS_CHECK(!open_.empty(), "the root is always a unit");
    open_.push_back({.module = module,
                     .unit = group_of(module, unit()),
                     .is_block = is_block,
                     .in_tail = in_tail});
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
  open_.push_back({.module = module,
                   .unit = unit,
                   .ends_unit = before + 1 == plan_.units[unit].modules.size(),
                   .is_block = is_block,
                   .in_tail = in_tail});
  begin_checkpoint();
}

UnitId PassBuilder::group_of(const std::string& module, UnitId unit) const {
  const auto found = second_group_of_module_.find(module);
  return found == second_group_of_module_.end() ? unit : found->second;
}

// Called after the kPreForward hook of the module's own unit, whose hooks do not run again.
void PassBuilder::begin_checkpoint() {
  if (!in_checkpoint_ && checkpointed_.contains(open_.back().module)) {
    in_checkpoint_ = open_.back().begins_checkpoint = true;
    checkpoints_.push_back({.begin = out_.order.size()});
  }
}

void PassBuilder::leave() {
  const Open closed = std::move(open_.back());
  open_.pop_back();
  open_blocks_ -= closed.is_block ? 1 : 0;
  open_tail_ -= closed.in_tail ? 1 : 0;
  if (closed.begins_checkpoint) {
    in_checkpoint_ = false;
    checkpoints_.back().end = out_.order.size();
    drop_last_result(checkpoints_.back());
  }
  if (closed.ends_unit) {
    hook_of_groups(Hook::kPostForward, closed.unit);
  }
}

bool PassBuilder::compiles() const {
  const Compile compile = out_.software.compile;
  return compile == Compile::kModel || (compile == Compile::kBlock && open_blocks_ > 0);
}

bool PassBuilder::fuses() const {
  const UnitId id = open_.empty() ? 0 : unit();
  return program_ == Program::kEngine || compiles() ||
         (program_ == Program::kEngineOnCpu && plan_.param_dtype(id) == DType::kF32);
}

Operator PassBuilder::make(OperatorKind kind, std::string_view name) const {
  if (ends_with_loss_) {
    throw InputError("loss_chunks",
                     "the model computes more with its logits before the loss, which is not "
                     "described in parts; expected 1");
  }
  Operator op;
  op.kind = kind;
  op.unit = open_.empty() ? 0 : unit();  // a loss outside of the model
  op.name = name;
  op.module = open_.empty() ? "" : open_.back().module;
  op.dtype = plan_.param_dtype(op.unit);
  return op;
}

void PassBuilder::append(Operator op) {
  out_.order.push_back(
      {WorkloadItem::Kind::kOperator, static_cast<uint32_t>(out_.operators.size())});
  out_.operators.push_back(std::move(op));
}

void PassBuilder::append(Communication communication) {
  out_.order.push_back(
      {WorkloadItem::Kind::kCommunication, static_cast<uint32_t>(out_.communications.size())});
  out_.communications.push_back(std::move(communication));
}

bool PassBuilder::is_frozen(std::string_view parameter) const {
  return !frozen_.empty() && frozen_.contains(open_.back().module + "." + std::string(parameter));
}

// In kPreForward and kPostForward, `grads` is kNone if the unit's input or output, respectively,
// does not require grad.
void PassBuilder::hook(Hook hook, UnitId unit, bool recompute) {
  HookEvent event;
  event.hook = hook;
  event.unit = unit;
  event.recompute = recompute;
  const bool forward = hook == Hook::kPreForward || hook == Hook::kPostForward;
  event.grads = forward && !recompute && !requires_grad_ ? Grads::kNone : Grads::kAll;
  out_.order.push_back({WorkloadItem::Kind::kHook, static_cast<uint32_t>(out_.hooks.size())});
  out_.hooks.push_back(event);
}

void PassBuilder::hook_of_groups(Hook each, UnitId unit) {
  for (uint32_t group = 0; group < plan_.units[unit].groups; ++group) {
    hook(each, unit + group);
  }
}

void PassBuilder::forward(Operator op, Bytes input, std::vector<Operator> backward, bool trains) {
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

Bytes PassBuilder::result_to_keep(const Operator& op, Checkpoint& checkpoint) const {
  const CheckpointSaves& saves = plan_.plan.checkpointing_saves;
  if (op.kind == OperatorKind::kAttention) {
    return saves.attention ? op.written : 0;
  }
  // GraphTrainer counts the router's product, which the others always compute again.
  const bool counts = !routes_ || out_.program == Program::kGraphTrainer;
  if (!counts || (op.name != "aten::mm" && op.name != "aten::addmm")) {
    return 0;
  }
  // PyTorch's lists of products (get_default_op_list, which torchtitan's policy takes) have those
  // of 8 bits, not torchao's function of 4 bits: it always runs again.
  if (op.matmul_dtype == MatmulDType::kNvfp4) {
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

// A compiled checkpoint keeps what backward needs of the results that it is told to keep. Nothing
// needs the last product's, which is a term of the block's output.
void PassBuilder::drop_last_result(const Checkpoint& checkpoint) {
  if (out_.software.compile == Compile::kNone || !checkpoint.keeps) {
    return;
  }
  const WorkloadItem& last = out_.order[checkpoint.last_kept];
  if (last.kind == WorkloadItem::Kind::kOperator) {
    out_.operators[last.index].saved -= std::exchange(results_[last.index], 0);
  }
}

// Autograd adds the gradients of a tensor with several consumers one by one.
Operator PassBuilder::gradient_sum(int64_t features) const {
  Operator sum = make(OperatorKind::kElementwise, "aten::add");
  const Bytes values = rows_ * features * size_of(sum.dtype);
  sum.flops = rows_ * features;
  sum.read = 2 * values;
  sum.written = values;
  return sum;
}

void PassBuilder::record(Operator op, std::vector<Operator> backward) {
  const Bytes input = op.read;
  const bool trains = !backward.empty();
  forward(std::move(op), input, std::move(backward), trains);
}

Communication PassBuilder::collective(
    CollectiveKind kind, Purpose purpose, mesh::GroupId group, Bytes bytes, Bytes written) const {
  Communication out;
  out.kind = kind;
  out.purpose = purpose;
  out.group = group;
  out.unit = open_.empty() ? 0 : unit();
  out.module = open_.empty() ? "" : open_.back().module;
  out.bytes = bytes;
  out.written = written;
  return out;
}

void PassBuilder::communicate(Communication each,
                              Bytes input,
                              std::optional<Communication> backward) {
  if (in_checkpoint_) {
    Checkpoint& checkpoint = checkpoints_.back();
    if (std::exchange(checkpoint.empty, false)) {
      checkpoint.input = input;
    }
  }
  if (backward) {
    backward->phase = Phase::kBackward;
  }
  append(std::move(each));
  backward_of_communication_.push_back(requires_grad_ ? std::move(backward) : std::nullopt);
}

bool PassBuilder::keeps_exchanges() const {
  return is_torchtitan(program_) && in_checkpoint_ && plan_.plan.checkpointing_saves.any();
}

void PassBuilder::keep_exchange(uint32_t communication, Bytes result) {
  kept_exchanges_.insert(communication);
  if (result == 0) {
    return;
  }
  forward(make(OperatorKind::kElementwise, "_c10d_functional::wait_tensor"), 0, {});
  if (requires_grad_) {
    out_.operators.back().saved += result;
    results_.back() = result;
  }
}

std::vector<PassBuilder::Step> PassBuilder::take_back(size_t first) {
  std::vector<Step> out;
  std::vector<uint32_t> operators;
  size_t communications = 0;
  for (size_t i = first; i < out_.order.size(); ++i) {
    const WorkloadItem& item = out_.order[i];
    SHARDLENS_CHECK(item.kind != WorkloadItem::Kind::kHook, "a hook is not taken back");
    if (item.kind == WorkloadItem::Kind::kOperator) {
      operators.push_back(item.index);
      out.push_back({out_.operators[item.index]});
    } else {
      ++communications;
      out.push_back({{}, out_.communications[item.index]});
    }
  }
  for (auto index = operators.rbegin(); index != operators.rend(); ++index) {
    for (Operator& each : backward_[*index]) {
      out.push_back({std::move(each)});
    }
  }
  const size_t left = out_.operators.size() - operators.size();
  out_.operators.resize(left);
  backward_.resize(left);
  kept_.resize(left);
  results_.resize(left);
  out_.communications.resize(out_.communications.size() - communications);
  backward_of_communication_.resize(out_.communications.size());
  out_.order.resize(first);
  return out;
}

void PassBuilder::communicate_in_backward(Communication each,
                                          size_t at,
                                          std::optional<size_t> waited_at) {
  const auto op = static_cast<uint32_t>(out_.operators.size() - 1);
  each.phase = Phase::kBackward;
  each.forward = {WorkloadItem::Kind::kOperator, op};
  in_backward_[op].push_back({at, waited_at, std::move(each)});
}

void PassBuilder::call_last_module_of(UnitId unit) {
  last_module_first_ = unit;
  for (const Hook each : {Hook::kReshard, Hook::kUnshard, Hook::kWaitUnshard}) {
    hook(each, unit);
  }
}

void PassBuilder::sum_over_tensor() {
  partial_.insert(open_.back().module);
}

// FSDP2 sums the gradients of replicated parameters before it reduces the unit's: one all-reduce
// for each, in place for all that memory shows.
// Source  FSDPParam._get_grad_inner_tensor in torch/distributed/fsdp/_fully_shard/_fsdp_param.py,
//         torch 2.11: DTensor.redistribute of a partial gradient.
void PassBuilder::sum_partial_gradients(UnitId unit) {
  const DType dtype = accumulates_ ? plan_.reduce_dtype(unit) : plan_.param_dtype(unit);
  for (const uint32_t index : plan_.units[unit].parameters) {
    const Parameter& parameter = plan_.tree.parameters[index];
    const std::string& module = plan_.tree.modules[parameter.module].fqn;
    if (!partial_.contains(module) || frozen_.contains(parameter.fqn)) {
      continue;
    }
    Communication sum =
        collective(CollectiveKind::kAllReduce, Purpose::kReduceReplicas,
                   plan_.group_named(mesh::kTensor), parameter.numel * size_of(dtype), 0);
    sum.phase = Phase::kBackward;
    sum.unit = unit;
    sum.module = module;
    append(std::move(sum));
  }
}

// Repeats the operators before the last one that saves a tensor. What that one saves is counted at
// the last one before it that backward comes to, and frees. torchtitan's checkpoints do not stop
// early: all are repeated, except by code that was compiled or traced, which computes only what
// backward reads. An operator whose result was kept, or is not read, has nothing to do.
// Source  torchtitan, experiments/graph_trainer/selective_activation_remat.py at commit 756213e.
void PassBuilder::recompute(const Checkpoint& checkpoint,
                            const std::vector<WorkloadItem>& forward_order) {
  const bool whole = is_torchtitan(program_) && !is_traced(out_.program) &&
                     out_.software.compile == Compile::kNone;
  std::optional<uint32_t> last;
  std::vector<uint32_t> awaiting;  // repeated communication that a later operator waits for
  for (size_t i = checkpoint.begin; i < (whole ? checkpoint.end : checkpoint.last_kept); ++i) {
    const uint32_t index = forward_order[i].index;
    if (forward_order[i].kind == WorkloadItem::Kind::kHook) {
      const HookEvent event = out_.hooks[index];
      hook(event.hook, event.unit, /*recompute=*/true);
      continue;
    }
    if (forward_order[i].kind == WorkloadItem::Kind::kCommunication) {
      if (kept_exchanges_.contains(index)) {
        continue;
      }
      Communication each = out_.communications[index];
      each.phase = Phase::kRecompute;
      each.forward = forward_order[i];
      if (each.waited_by) {
        awaiting.push_back(static_cast<uint32_t>(out_.communications.size()));
      }
      append(std::move(each));
      continue;
    }
    const bool idle = !whole && unread_.contains(index);
    if (idle && kept_[index] == 0) {
      continue;
    }
    Operator op = out_.operators[index];
    op.phase = Phase::kRecompute;
    op.forward = static_cast<int32_t>(index);
    // A fused operator saves its input, which is saved already.
    const Bytes input = op.saved - results_[index];
    op.saved = program_ == Program::kTransformers ? kept_[index]
                                                  : std::max<Bytes>(kept_[index] - input, 0);
    op.frees = results_[index];
    if (idle || results_[index] > 0) {
      op.flops = op.read = op.written = 0;
    }
    for (const uint32_t waiting : awaiting) {
      std::optional<WorkloadItem>& item = out_.communications[waiting].waited_by;
      if (item == forward_order[i]) {
        item->index = static_cast<uint32_t>(out_.operators.size());
      }
    }
    if (!last || !backward_[index].empty()) {
      last = static_cast<uint32_t>(out_.operators.size());
    }
    append(std::move(op));
  }
  if (last && !whole) {
    out_.operators[*last].saved += kept_[forward_order[checkpoint.last_kept].index];
  }
}

void PassBuilder::unread_from(size_t first) {
  for (size_t op = first; op < out_.operators.size(); ++op) {
    unread_.insert(static_cast<uint32_t>(op));
  }
}

// The backward of a frozen unit ends when the gradients of its inputs are computed; it has no
// backward if its inputs do not require grad.
void PassBuilder::grads_ready(const HookEvent& pre_forward) {
  const bool frozen = plan_.is_frozen(pre_forward.unit);
  if (frozen && pre_forward.grads == Grads::kNone) {
    return;
  }
  sum_partial_gradients(pre_forward.unit);
  hook(Hook::kGradsReady, pre_forward.unit);
  if (frozen || pre_forward.unit == last_module_first_) {
    out_.hooks.back().grads = frozen ? Grads::kNone : Grads::kOthers;
  }
}

void PassBuilder::differentiate(uint32_t op) {
  std::vector<Operator>& operators = backward_[op];
  const auto found = in_backward_.find(op);
  for (size_t i = 0; i <= operators.size(); ++i) {
    if (found != in_backward_.end()) {
      for (InBackward& each : found->second) {
        if (each.at == i) {
          if (each.waited_at) {  // the operators from here on follow each other
            const size_t waits = out_.operators.size() + *each.waited_at - i;
            each.communication.waited_by = {WorkloadItem::Kind::kOperator,
                                            static_cast<uint32_t>(waits)};
          }
          append(std::move(each.communication));
        }
      }
    }
    if (i < operators.size()) {
      append(std::move(operators[i]));
    }
  }
}

void PassBuilder::finish_backward() {
  SHARDLENS_CHECK(open_.empty(), "a module is still open");
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
      differentiate(item->index);
      continue;
    }
    if (item->kind == WorkloadItem::Kind::kCommunication) {
      if (std::optional<Communication>& each = backward_of_communication_[item->index]) {
        each->forward = *item;
        append(std::move(*each));
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
    } else if (event.hook == Hook::kWaitUnshard) {
      hook(Hook::kGradsReady, event.unit);
      out_.hooks.back().grads = Grads::kLast;
      hook(Hook::kReshard, event.unit);
    }
  }
  hook(Hook::kBackwardEnd, 0);
}

void PassBuilder::optimizer(const StepSettings& settings) {
  const std::vector<UnitSize> sizes = unit_sizes(plan_);
  for (Operator& op : optimizer_operators(plan_, sizes, settings)) {
    append(std::move(op));
  }
  if (std::optional<Communication> scales = float8_scales(plan_)) {
    append(std::move(*scales));
  }
  out_.in_backward = operators_in_backward(plan_, sizes, settings);
  hook(Hook::kOptimizerDone, 0);
  set_launches(plan_.tree, out_);
}

}  // namespace shardlens::plan
