#include "sim/memory/unit_memory.h"

#include <algorithm>
#include <utility>

namespace shardlens::sim {
namespace {

using schedule::BufferKind;
using schedule::Stream;

// Whether the unit has gradients of its own, which are not views of a bucket.
bool has_gradients(const plan::Unit& unit) {
  return !unit.parameters.empty() &&
         !(unit.api == plan::Api::kReplicate && unit.gradient_as_bucket_view);
}

// Bytes of norms and biases, for which no operator has the size of the gradient.
Bytes bytes_of_vectors(const plan::ResolvedPlan& plan, UnitId unit) {
  int64_t numel = 0;
  for (const uint32_t parameter : plan.units[unit].parameters) {
    const bool vector = plan.tree.parameters[parameter].shape.size() == 1;
    numel += vector ? plan.local_numel(parameter) : 0;
  }
  return numel * size_of(plan.param_dtype(unit));
}

}  // namespace

void UnitMemory::begin(const MemoryInputs& inputs, const MemoryOptions& options, Part part) {
  LiveMemory::begin(options.capacity,
                    options.expandable_segments ? CachingAllocator::Segments::kExpandable
                                                : CachingAllocator::Segments::kFixed,
                    part);
  delays_ = options.delays_reuse && inputs.plan.plan.dialect == plan::Dialect::kFsdp1;
  const plan::ResolvedPlan& plan = inputs.plan;
  units_.assign(plan.units.size(), {});
  for (UnitId id = 0; id < units_.size(); ++id) {
    Unit& unit = units_[id];
    unit.buffers.fill(kNone);
    const plan::UnitSize& size = inputs.sizes[id];
    const Bytes param = size_of(plan.param_dtype(id)), reduce = size_of(plan.reduce_dtype(id));
    const Bytes master = size_of(plan.master_dtype(id));
    const auto bytes = [&unit](BufferKind kind) -> Bytes& {
      return unit.bytes[static_cast<size_t>(kind)];
    };
    // See hold_state() for what is kept.
    bytes(BufferKind::kUnsharded) = plan.units[id].keep_unsharded_storage ? 0 : size.unsharded;
    bytes(BufferKind::kGathered) = size.unsharded;
    if (const plan::Reshard& after = plan.units[id].reshard_after_forward;
        after.kind == plan::Reshard::Kind::kSubMesh) {
      bytes(BufferKind::kSubShard) = size.unsharded / after.ranks;
    }
    const auto reduction = [&](Grads grads) {
      const plan::Reduced part = size.reduced_of(grads);
      return Unit::Reduction{part.full * reduce, part.shard * reduce, part.shard * master};
    };
    unit.all = reduction(Grads::kAll);
    unit.last = reduction(Grads::kLast);
    unit.others = reduction(Grads::kOthers);
    bytes(BufferKind::kReduceInput) = unit.all.input;
    bytes(BufferKind::kReduceOutput) = unit.all.output;
    unit.unsharded_gradient_bytes = has_gradients(plan.units[id]) ? size.reduced * param : 0;
    unit.casts = reduce != master;
    unit.staged_bytes = plan.casts_parameters(id) ? size.sharded : 0;
    if (options.keeps_last_gradient && plan.plan.layout == plan::Layout::kPerParameter &&
        unit.unsharded_gradient_bytes > 0) {
      const std::vector<uint32_t>& parameters = plan.units[id].parameters;
      unit.all.rest = plan.local_numel(parameters.back()) * param;
      unit.last.rest = unit.last.input;  // the last module has one parameter
      unit.others.rest = plan.local_numel(parameters.front()) * param;
    }
    unit.other_gradient_bytes = unit.unsharded_gradient_bytes;
  }
  for (const plan::Operator& op : inputs.workload.in_backward) {
    units_[op.unit].step_bytes += op.saved;
  }
}

void UnitMemory::add_operators(const MemoryInputs& inputs) {
  for (const OperatorMemory& op : inputs.operators) {
    units_[op.unit].has_norms |= op.of_norm;
    if (op.gradient == 0) {
      continue;
    }
    Bytes& others = units_[op.unit].other_gradient_bytes;
    if (op.gradient == kRest || op.kind == OperatorMemory::Kind::kForward) {
      others = std::min(others, bytes_of_vectors(inputs.plan, op.unit));
    } else {
      others = std::max<Bytes>(0, others - op.gradient);
    }
  }
}

void UnitMemory::hold_state(const MemoryInputs& inputs, const MemoryOptions& options) {
  for (UnitId id = 0; id < units_.size(); ++id) {
    const plan::Unit& unit = inputs.plan.units[id];
    const plan::UnitSize& size = inputs.sizes[id];
    if (unit.keep_unsharded_storage && unit.api == plan::Api::kFullyShard &&
        (inputs.plan.groups[unit.gather].size > 1 || inputs.plan.copies_in_group_of_one)) {
      hold(size.unsharded, Stream::kCompute, MemoryCategory::kUnsharded, id, What::kUnsharded);
    }
    if (unit.cpu_offload) {
      continue;
    }
    hold(size.sharded, Stream::kCompute, MemoryCategory::kParameters, id, What::kShard);
    const int64_t states = size.states ? 1 : options.optimizer_states;
    const Bytes each = size.optimizer_states(1, inputs.plan.master_dtype(id));
    for (int64_t i = 0; i < states && each > 0; ++i) {
      hold(each, Stream::kCompute, MemoryCategory::kOptimizer, id, What::kOptimizerState);
    }
    if (plan::keeps_gradients(inputs.workload.program, inputs.workload.software)) {
      const bool parts = size.last.full > 0;
      for (const Grads grads : {parts ? Grads::kLast : Grads::kAll, Grads::kOthers}) {
        units_[id].gradient_of(grads) = hold(units_[id].reduction(grads).gradient, Stream::kCompute,
                                             MemoryCategory::kGradients, id, What::kGradient);
      }
    }
  }
  for (const schedule::PlannedBucket& bucket : inputs.buckets) {
    hold(bucket.bytes, Stream::kCompute, MemoryCategory::kCommunication, kNoUnit, What::kBucket);
  }
  for (const uint32_t parameter : inputs.plan.ignored_parameters) {
    const plan::Parameter& each = inputs.plan.tree.parameters[parameter];
    hold(inputs.plan.local_numel(parameter) * size_of(each.dtype), Stream::kCompute,
         MemoryCategory::kParameters, kNoUnit, What::kIgnored);
  }
}

void UnitMemory::allocate(const MemoryItem& item) {
  Unit& unit = units_[item.unit];
  Block& slot = unit.buffer(item.buffer);
  drop(slot);
  unit.allocated_on[static_cast<size_t>(item.buffer)] = item.stream;
  const Bytes bytes = item.buffer == BufferKind::kReduceInput ? unit.reduction(item.grads).input
                      : item.buffer == BufferKind::kReduceOutput
                          ? unit.reduction(item.grads).output
                          : unit.bytes[static_cast<size_t>(item.buffer)];
  const auto take = [&](MemoryCategory category, What what) {
    slot = hold(bytes, item.stream, category, item.unit, what);
  };
  switch (item.buffer) {
    case BufferKind::kUnsharded:
      return take(MemoryCategory::kUnsharded, What::kUnsharded);
    case BufferKind::kGathered:
      return take(MemoryCategory::kCommunication, What::kGathered);
    case BufferKind::kSubShard:
      return take(MemoryCategory::kUnsharded, What::kSubShard);
    case BufferKind::kReduceInput:
      return take(MemoryCategory::kCommunication, What::kReduceInput);
    case BufferKind::kReduceOutput:
      return take(MemoryCategory::kCommunication, What::kReduceOutput);
    case BufferKind::kUnshardedGrad:
    case BufferKind::kNone:
      return;
  }
}

void UnitMemory::release(const MemoryItem& item) {
  Unit& unit = units_[item.unit];
  if (item.buffer == BufferKind::kUnshardedGrad || item.buffer == BufferKind::kNone) {
    for (Block& piece : unit.pieces) {
      drop(piece);
    }
    const Bytes rest = unit.reduction(item.grads).rest;
    if (rest > 0 && !unit.pieces.empty() && unit.buffer(BufferKind::kReduceInput) != kNone) {
      drop(unit.last_gradient);  // of the microbatch before
      unit.last_gradient = hold(rest, Stream::kCompute, MemoryCategory::kGradients, item.unit,
                                What::kUnshardedGradient);
    }
    unit.pieces.clear();
    unit.gradient_so_far = 0;
    unit.has_other_gradients = false;
  }
  if (item.buffer != BufferKind::kNone) {
    drop(unit.buffer(item.buffer),
         delays_ && item.stream != unit.allocated_on[static_cast<size_t>(item.buffer)]);
  }
}

// If the unit's gradients are already in one tensor, the new ones are added to it in place.
void UnitMemory::add_gradient(const OperatorMemory& op) {
  Unit& unit = units_[op.unit];
  if (unit.buffer(BufferKind::kUnshardedGrad) != kNone) {
    return;
  }
  // A sum of gradients that forward makes may have another dtype than they.
  const bool in_forward = op.kind == OperatorMemory::Kind::kForward;
  const auto piece = [&](Bytes bytes) {
    bytes =
        in_forward ? bytes : std::min(bytes, unit.unsharded_gradient_bytes - unit.gradient_so_far);
    const Block block = hold(bytes, Stream::kCompute, MemoryCategory::kGradients, op.unit,
                             What::kUnshardedGradient);
    if (block != kNone) {
      unit.pieces.push_back(block);
      unit.gradient_so_far += in_forward ? 0 : bytes;
    }
  };
  if (!in_forward && !unit.has_other_gradients && (op.of_norm || !unit.has_norms)) {
    unit.has_other_gradients = true;
    piece(unit.other_gradient_bytes);
  }
  piece(op.gradient);
}

// See [Note: Gradients].
void UnitMemory::flatten_gradient(UnitId id) {
  if (id >= units_.size()) {
    return;  // a bucket
  }
  Unit& unit = units_[id];
  if (unit.pieces.empty() || unit.buffer(BufferKind::kReduceInput) != kNone) {
    return;
  }
  unit.buffer(BufferKind::kUnshardedGrad) =
      hold(unit.unsharded_gradient_bytes, Stream::kCompute, MemoryCategory::kGradients, id,
           What::kUnshardedGradient);
  release({.kind = MemoryItem::Kind::kFree, .unit = id});
}

void UnitMemory::store(const MemoryItem& item) {
  Unit& unit = units_[item.unit];
  drop(unit.last_gradient);
  Block& gradient = unit.gradient_of(item.grads);
  if (gradient != kNone) {
    return;  // the new gradient is added to it
  }
  Block& source = unit.buffer(item.buffer);
  if (unit.casts || source == kNone) {
    gradient = hold(unit.reduction(item.grads).gradient, item.stream, MemoryCategory::kGradients,
                    item.unit, What::kGradient);
    return;
  }
  // The reduction's output becomes the gradient.
  if (source == kElsewhere) {
    gradient = std::exchange(source, kNone);
    return;
  }
  become_gradient(source);
  gradient = std::exchange(source, kNone);
}

// A copy from the host comes in the master dtype and is cast on the device; a copy to the host is
// cast before it leaves. The cast's other tensor exists only during the copy.
void UnitMemory::stage(const MemoryItem& item) {
  const Unit& unit = units_[item.unit];
  const bool to_host = item.buffer == schedule::BufferKind::kReduceOutput ||
                       item.buffer == schedule::BufferKind::kUnshardedGrad ||
                       item.buffer == schedule::BufferKind::kReduceInput;
  const Bytes bytes =
      to_host ? (unit.casts ? unit.reduction(item.grads).gradient : 0) : unit.staged_bytes;
  if (bytes > 0) {
    Block block =
        hold(bytes, item.stream, MemoryCategory::kCommunication, item.unit, What::kStaged);
    staged_ = item.compute || block >= kElsewhere ? 0 : allocator_.size(block);
    drop(block);
  }
}

// optimizer_in_backward drops the gradient. What was the reduction's buffer is that again, and
// freed with it.
void UnitMemory::step(const MemoryItem& item) {
  Unit& unit = units_[item.unit];
  if (unit.step_bytes > 0) {
    Block block = hold(unit.step_bytes, item.stream, MemoryCategory::kOptimizer, item.unit,
                       What::kOptimizerState);
    staged_ = part_ != Part::kOthers || block >= kElsewhere ? 0 : allocator_.size(block);
    drop(block);
  }
  if (unit.casts) {
    drop(unit.gradient);
  } else {
    unit.buffer(item.buffer) = std::exchange(unit.gradient, kNone);
  }
}

}  // namespace shardlens::sim
