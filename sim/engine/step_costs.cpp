#include "sim/engine/step_costs.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>
#include <unordered_map>

#include "core/base/error.h"

namespace shardlens::sim {
namespace {

using plan::Operator;

// The properties of an operator that a cost model may depend on: all except its unit and position.
struct Shape {
  const Operator* op;
  friend bool operator==(const Shape& a, const Shape& b) {
    const Operator &x = *a.op, &y = *b.op;
    return x.kind == y.kind && x.phase == y.phase && x.batch == y.batch && x.m == y.m &&
           x.n == y.n && x.k == y.k && x.dtype == y.dtype && x.flops == y.flops &&
           x.read == y.read && x.written == y.written && x.name == y.name && x.launch == y.launch &&
           x.matmul_dtype == y.matmul_dtype;
  }
};

struct ShapeHash {
  size_t operator()(const Shape& shape) const {
    const Operator& op = *shape.op;
    uint64_t hash = static_cast<uint64_t>(op.kind) * 31 + static_cast<uint64_t>(op.phase);
    for (const int64_t value : {op.batch, op.m, op.n, op.k, op.flops, op.read, op.written}) {
      hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15ULL;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

// [Note: The link] A GPU has its own link to the host, each way. Copies to the device are on one
// stream and copies to the host on another, so at most one copy at a time uses each way: streams
// alone order them.
void add_host_copies(const plan::ResolvedPlan& plan,
                     UnitId id,
                     const plan::UnitSize& size,
                     const CostModel& model,
                     bool largest,
                     UnitCosts& costs) {
  const Bytes master = size_of(plan.master_dtype(id)), reduce = size_of(plan.reduce_dtype(id));
  const Bytes shard = size.sharded, own = size.unsharded / plan.groups[plan.units[id].gather].size;
  const Bytes reduced = size.reduced_shard * reduce, gradient = size.reduced_shard * master;
  if (!model.has_device()) {
    costs.to_device = model.copy_of(schedule::Op::kToDevice, shard, own, largest);
    costs.to_host =
        reduce == master ? 0 : model.copy_of(schedule::Op::kToHost, reduced, gradient, largest);
    costs.to_host_add = model.copy_of(schedule::Op::kToHost, reduced + gradient, gradient, largest);
    return;
  }
  // The device casts: see FlatParamHandle::copy_in() and to_host().
  costs.to_device =
      model.host_copy(shard) + (plan.casts_parameters(id) ? model.copy(shard, own) : 0);
  costs.to_host = costs.to_host_add =
      model.host_copy(gradient) + (reduce == master ? 0 : model.copy(reduced, gradient));
}

// Whether the plan's collectives have several communicators.
bool has_several_communicators(const plan::ResolvedPlan& plan) {
  return std::ranges::count_if(plan.groups,
                               [](const mesh::Group& group) { return group.size > 1; }) > 1;
}

// `largest`: no unit of the plan is larger.
UnitCosts unit_costs(const plan::ResolvedPlan& plan,
                     UnitId id,
                     const plan::UnitSize& size,
                     const CostModel& model,
                     bool shares,
                     bool largest,
                     plan::Program program) {
  const bool traced = plan::is_traced(program);
  const plan::Unit& unit = plan.units[id];
  UnitCosts costs;
  if (unit.parameters.empty() || unit.api == plan::Api::kReplicate) {
    return costs;  // gradients of a replicated unit are reduced in buckets
  }
  const Bytes master = size_of(plan.master_dtype(id));
  const Bytes param = size_of(plan.param_dtype(id)), reduce = size_of(plan.reduce_dtype(id));
  const mesh::Group &shards = plan.groups[unit.gather], &replicas = plan.groups[unit.replicate];
  const Bytes unsharded = size.unsharded, own = size.unsharded / shards.size;
  const plan::UnitMessages messages = plan::unit_messages(plan, id, size);
  const auto cost = [&](CollectiveKind kind, const mesh::Group& group, Bytes message) {
    return collective_cost(model, kind, group, message, shares);
  };
  costs.all_gather = cost(CollectiveKind::kAllGather, shards, messages.all_gather);
  // A cast to float8 is three operators: the scale's product and the clamp, in the shard's dtype,
  // and the cast.
  const Bytes cast = size.float8 / shards.size * master;
  costs.copy_in = model.copy_of(schedule::Op::kCopyIn, size.sharded, own, largest) +
                  (cast > 0 ? 2 * model.copy(cast, cast) : 0);
  costs.copy_out = model.copy_of(schedule::Op::kCopyOut, unsharded, unsharded, largest);
  if (unit.kept != mesh::kNoGroup) {
    const mesh::Group& kept = plan.groups[unit.kept];
    costs.sub_all_gather = cost(CollectiveKind::kAllGather, kept, messages.all_gather);
    costs.sub_copy_out = model.copy_of(schedule::Op::kCopyOut, unsharded / kept.size,
                                       unsharded / kept.size, largest);
  }
  // `element`: bytes of a number of the gradients.
  const auto reduction = [&](const plan::Reduced& part, const plan::UnitMessages& sent,
                             Bytes element) {
    ReductionCosts out;
    out.reduce_scatter =
        cost(CollectiveKind::kReduceScatter, plan.groups[unit.reduce], sent.reduce_scatter);
    out.all_reduce_shard = cost(CollectiveKind::kAllReduce, replicas, sent.all_reduce_shard);
    out.all_reduce_full = cost(CollectiveKind::kAllReduce, replicas, sent.all_reduce_full);
    out.reduce_copy_in = model.copy_of(schedule::Op::kReduceCopyIn, part.full * element,
                                       part.full * reduce, largest);
    if (traced && element != reduce) {  // converted first, then packed
      out.reduce_copy_in += model.copy(part.full * reduce, part.full * reduce);
    }
    // The gradients of experts are divided by their factor in a kernel of its own, since no
    // collective's average has it. Source  _ScaledPartial in experiments/simple_fsdp/simple_fsdp.py
    // of torchtitan, which pull request 2337 of February 2026 removed.
    if (unit.expert && program == plan::Program::kSimpleFsdp) {
      out.reduce_copy_in += model.copy(part.full * reduce, part.full * reduce);
    }
    if (shards.size == 1 && plan.copies_out()) {  // and in place of the reduce-scatter
      out.reduce_copy_in += model.copy(part.full * reduce, part.full * reduce);
    }
    out.store = reduce == master ? 0
                                 : model.copy_of(schedule::Op::kStoreGrad, part.shard * reduce,
                                                 part.shard * master, largest);
    out.store_add = model.copy_of(schedule::Op::kStoreGrad, part.shard * (reduce + master),
                                  part.shard * master, largest);
    return out;
  };
  static_cast<ReductionCosts&>(costs) = reduction(size.reduced_of(Grads::kAll), messages, param);
  if (size.last.full > 0) {  // added up in the dtype of the reduction
    costs.last = reduction(size.last, plan::unit_messages(plan, id, size, Grads::kLast), reduce);
    costs.others =
        reduction(size.others, plan::unit_messages(plan, id, size, Grads::kOthers), param);
  }
  if (plan.plan.layout == plan::Layout::kFlat && reduce == param) {
    costs.flatten = model.copy(size.reduced * param, size.reduced * param);
  }
  if (unit.cpu_offload) {
    add_host_copies(plan, id, size, model, largest, costs);
  }
  return costs;
}

// Whether unit_costs() gives the same result for both units, if their sizes are equal.
bool alike(const plan::ResolvedPlan& plan, UnitId a, UnitId b) {
  const plan::Unit &x = plan.units[a], &y = plan.units[b];
  return x.parameters.empty() == y.parameters.empty() && x.api == y.api &&
         x.reshard_after_forward == y.reshard_after_forward && x.kept == y.kept &&
         x.expert == y.expert && x.gather == y.gather && x.reduce == y.reduce &&
         x.cpu_offload == y.cpu_offload && plan.param_dtype(a) == plan.param_dtype(b) &&
         plan.reduce_dtype(a) == plan.reduce_dtype(b);
}

}  // namespace

CollectiveCost collective_cost(const CostModel& model,
                               CollectiveKind kind,
                               const mesh::Group& group,
                               Bytes larger_message,
                               bool shares) {
  const int64_t per_node =
      std::clamp<int64_t>(model.node_ranks() / group.stride, 1, std::max<int64_t>(1, group.size));
  const auto ranks = static_cast<int>(group.size);
  const Nanoseconds alone =
      model.duration_across(kind, ranks, static_cast<int>(per_node), larger_message);
  const auto work = [&model](Nanoseconds time) {
    return WorkTime{time, std::llround(static_cast<double>(time) * model.collective_slowdown())};
  };
  LinkUse link{.transfer = 0, .across_nodes = per_node < group.size};
  link.takes_cores = link.across_nodes || model.takes_cores(kind);
  if (shares && alone > 0 && model.shares_links(kind)) {
    // The time of the smallest message is all latency.
    link.transfer = std::max<Nanoseconds>(
        0, alone - model.duration_across(kind, ranks, static_cast<int>(per_node), 1));
  }
  const Nanoseconds wait = alone > 0 ? model.peer_wait(kind, ranks) : 0;
  return {{wait, wait}, work(alone), link};  // compute of this rank makes no other rank later
}

std::vector<CommunicationCost> communication_costs(const plan::Workload& workload,
                                                   const plan::ResolvedPlan& plan,
                                                   const CostModel& model) {
  std::vector<CommunicationCost> out;
  out.reserve(workload.communications.size());
  std::map<std::tuple<CollectiveKind, mesh::GroupId, Bytes>, CollectiveCost> known;
  const bool several = has_several_communicators(plan);
  for (const plan::Communication& each : workload.communications) {
    SHARDLENS_CHECK(each.group < plan.groups.size(), "communication has a group of no plan");
    const auto [it, fresh] = known.try_emplace({each.kind, each.group, each.bytes});
    if (fresh) {
      it->second = collective_cost(model, each.kind, plan.groups[each.group], each.bytes, several);
    }
    out.push_back({it->second, model.issue_communication(each), model.before_wait(each)});
  }
  return out;
}

std::vector<UnitCosts> unit_costs(const plan::ResolvedPlan& plan,
                                  std::span<const plan::UnitSize> sizes,
                                  const CostModel& model,
                                  plan::Program program) {
  std::vector<UnitCosts> costs;
  costs.reserve(plan.units.size());
  const bool several = has_several_communicators(plan);
  Bytes largest = 0;
  for (const plan::UnitSize& each : sizes) {
    largest = std::max(largest, each.unsharded);
  }
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    const bool again = id > 0 && sizes[id] == sizes[id - 1] && alike(plan, id - 1, id);
    costs.push_back(again ? costs.back()
                          : unit_costs(plan, id, sizes[id], model, several,
                                       sizes[id].unsharded == largest, program));
  }
  return costs;
}

Nanoseconds copy_time(const schedule::Action& action, const UnitCosts& unit, bool adds) {
  switch (action.op) {
    case schedule::Op::kCopyIn:
      return unit.copy_in;
    case schedule::Op::kCopyOut:
      return action.buffer.kind == schedule::BufferKind::kSubShard ? unit.sub_copy_out
                                                                   : unit.copy_out;
    case schedule::Op::kReduceCopyIn:
      return action.buffer.kind == schedule::BufferKind::kReduceOutput
                 ? 0  // a part of the copy-in
                 : unit.reduction(action.grads).reduce_copy_in;
    case schedule::Op::kStoreGrad:
      return adds ? unit.reduction(action.grads).store_add : unit.reduction(action.grads).store;
    case schedule::Op::kToDevice:
      return unit.to_device;
    case schedule::Op::kToHost:
      return adds ? unit.to_host_add : unit.to_host;
    default:
      return 0;
  }
}

void add_steps(std::span<const Operator> operators,
               const CostModel& model,
               std::span<UnitCosts> costs) {
  for (UnitCosts& unit : costs) {
    unit.step = {};
  }
  for (const Operator& op : operators) {
    const WorkTime run = model.compute(op);
    costs[op.unit].step.alone += run.alone;
    costs[op.unit].step.beside += run.beside;
  }
}

double share_on_host(const plan::ResolvedPlan& plan, std::span<const plan::UnitSize> sizes) {
  int64_t all = 0, on_host = 0;
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    all += plan.units[id].optimizer_in_backward ? 0 : sizes[id].stepped;
    on_host += plan.units[id].cpu_offload ? sizes[id].stepped : 0;
  }
  return all == 0 ? 0 : static_cast<double>(on_host) / static_cast<double>(all);
}

OperatorCost operator_cost(const Operator& op, double share_on_host, const CostModel& model) {
  if (op.kind != plan::OperatorKind::kOptimizer || share_on_host == 0 || !model.has_device()) {
    return {model.compute(op), model.issue(op)};
  }
  const auto part = [&op](double share) {
    Operator out = op;
    for (int64_t* each : {&out.flops, &out.read, &out.written}) {
      *each = std::llround(static_cast<double>(*each) * share);
    }
    return out;
  };
  const WorkTime run = share_on_host == 1 ? WorkTime{} : model.compute(part(1 - share_on_host));
  return {run, model.issue(op) + model.on_host(part(share_on_host))};
}

StepCosts step_costs(const plan::Workload& workload,
                     const plan::ResolvedPlan& plan,
                     const CostModel& model) {
  StepCosts costs;
  costs.operators.reserve(workload.operators.size());
  const std::vector<plan::UnitSize> sizes = plan::unit_sizes(plan);
  const double on_host = share_on_host(plan, sizes);
  std::unordered_map<Shape, OperatorCost, ShapeHash> known;
  for (const Operator& op : workload.operators) {
    const auto [it, fresh] = known.try_emplace({&op});
    if (fresh) {
      it->second = operator_cost(op, on_host, model);
    }
    costs.operators.push_back(it->second);
  }
  costs.sums = operator_sums(costs.operators);
  const bool traced = plan::is_traced(workload.program);
  costs.units = unit_costs(plan, sizes, model, workload.program);
  add_steps(workload.in_backward, model, costs.units);
  costs.communications = communication_costs(workload, plan, model);
  costs.host_slowdown = model.host_slowdown();
  costs.waking = model.waking();
  // What a CUDA graph has captured, the host does not issue again: it issues the graph.
  const bool captured = workload.software.cuda_graphs;
  for (CommunicationCost& each : costs.communications) {
    each.issue = captured ? 0 : each.issue;
    each.before_wait = captured ? 0 : each.before_wait;
  }
  for (size_t kind = 0; kind < costs.blocking.size(); ++kind) {
    costs.blocking[kind] = model.blocks(static_cast<CollectiveKind>(kind));
  }
  for (size_t op = 0; op < costs.issue.size(); ++op) {
    costs.issue[op] = captured ? 0 : model.issue(static_cast<schedule::Op>(op));
  }
  for (size_t hook = 0; hook < costs.hooks.size(); ++hook) {
    costs.hooks[hook] = captured || traced ? 0 : model.issue_hook(static_cast<Hook>(hook));
  }
  return costs;
}

}  // namespace shardlens::sim
