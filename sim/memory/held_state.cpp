// What a step keeps from its beginning to its end, and CPU offload, which keeps it on the host.
#include <utility>

#include "sim/memory/memory_replay.h"

namespace shardlens::sim {

using schedule::Stream;

void MemoryReplay::hold_state(const MemoryInputs& inputs, const MemoryOptions& options) {
  for (UnitId id = 0; id < units_.size(); ++id) {
    if (inputs.plan.units[id].cpu_offload) {
      continue;
    }
    const plan::UnitSize& size = inputs.sizes[id];
    hold(size.sharded, Stream::kCompute, MemoryCategory::kParameters, id, What::kShard);
    for (int64_t i = 0; i < options.optimizer_states; ++i) {
      hold(size.stepped * size_of(inputs.plan.master_dtype(id)), Stream::kCompute,
           MemoryCategory::kOptimizer, id, What::kOptimizerState);
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

// A copy from the host comes in the master dtype and is cast on the device; a copy to the host is
// cast before it leaves. The cast's other tensor exists only during the copy.
void MemoryReplay::stage(const MemoryItem& item) {
  const Unit& unit = units_[item.unit];
  const bool to_host = item.buffer == schedule::BufferKind::kReduceOutput ||
                       item.buffer == schedule::BufferKind::kUnshardedGrad ||
                       item.buffer == schedule::BufferKind::kReduceInput;
  const Bytes bytes = to_host ? (unit.casts ? unit.gradient_bytes : 0) : unit.staged_bytes;
  if (bytes > 0) {
    Block block =
        hold(bytes, item.stream, MemoryCategory::kCommunication, item.unit, What::kStaged);
    staged_ = item.compute || block >= kElsewhere ? 0 : allocator_.size(block);
    drop(block);
  }
}

// optimizer_in_backward drops the gradient. What was the reduction's buffer is that again, and
// freed with it.
void MemoryReplay::step(const MemoryItem& item) {
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
