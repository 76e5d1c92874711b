// The replay in two parts: the compute stream's pool, which plans share, and the other pools.
#include <algorithm>
#include <limits>
#include <utility>

#include "sim/memory/memory_replay.h"

namespace shardlens::sim {
namespace {

using schedule::Stream;

MemoryOptions unlimited(MemoryOptions options) {
  options.capacity = std::numeric_limits<Bytes>::max();
  return options;
}

}  // namespace

bool same_memory(const ComputeMemory& memory, const ComputeStart& one, const ComputeStart& other) {
  const auto useful = [&memory](const ComputeStart& start) {
    std::vector<CachingAllocator::FreeBlock> out = start.free;
    std::erase_if(out, [&memory](CachingAllocator::FreeBlock& each) {
      each.address = 0;
      return !each.grows && each.size < (CachingAllocator::small(each.pool) ? memory.least_small
                                                                            : memory.least_large);
    });
    return out;
  };
  return one.sizes == other.sizes && useful(one) == useful(other);
}

ComputeStart MemoryReplay::compute_start(const MemoryInputs& inputs, const MemoryOptions& options) {
  std::array<bool, schedule::kBufferKindCount> taken{};
  bool stores = false, stages = false;
  for (const MemoryItem& item : inputs.outline.items) {
    if (item.stream == Stream::kCompute) {
      taken[static_cast<size_t>(item.buffer)] |= item.kind == MemoryItem::Kind::kAlloc;
      stores |= item.kind == MemoryItem::Kind::kStore;
      stages |= item.kind == MemoryItem::Kind::kStage;
    }
  }
  stop_at_ = -1;
  begin(inputs, unlimited(options), Part::kCompute);
  hold_state(inputs, options);
  ComputeStart out;
  out.allocated = allocator_.allocated();
  out.reserved = allocator_.reserved();
  out.free = allocator_.free_blocks();
  for (const Unit& unit : units_) {
    out.sizes.insert(out.sizes.end(),
                     {unit.unsharded_gradient_bytes, unit.all.rest,
                      stores || stages ? unit.all.gradient : 0, stages ? unit.staged_bytes : 0});
    for (size_t kind = 0; kind < taken.size(); ++kind) {
      out.sizes.push_back(taken[kind] ? unit.bytes[kind] : 0);
    }
  }
  for (auto op = inputs.operators.rbegin();
       op != inputs.operators.rend() && op->kind == OperatorMemory::Kind::kOptimizer; ++op) {
    out.sizes.insert(out.sizes.end(), op->handed.begin(), op->handed.end());
  }
  return out;
}

ComputeMemory MemoryReplay::compute_memory(const MemoryInputs& inputs,
                                           const MemoryOptions& options,
                                           const ComputeStart& start) {
  const MemoryOptions limitless = unlimited(options);
  ComputeMemory out;
  stop_at_ = -1;
  begin(inputs, limitless, Part::kCompute);
  replay(inputs, limitless, &out);
  out.reserved = allocator_.reserved() - start.reserved;
  out.least_large = least_large_;
  out.least_small = least_small_;
  for (ComputeMemory::Point& point : out.points) {
    point.most -= start.allocated;
    point.end -= start.allocated;
  }
  return out;
}

// Adds the points of skipped items, from microbatch `first` up to item `next`: those of the item
// one microbatch before, or unchanged memory.
void MemoryReplay::note_passed(const MemoryOutline& outline,
                               size_t first,
                               size_t next,
                               ComputeMemory& notes) const {
  const Bytes now = allocator_.allocated();
  const size_t begin = outline.microbatches[first];
  const size_t length = first == 0 ? 0 : begin - outline.microbatches[first - 1];
  for (size_t at = begin; at < next; ++at) {
    const size_t within = (at - begin) % std::max<size_t>(1, length);
    const bool repeats = at - begin < length * (outline.microbatches.size() - first);
    notes.points.push_back(repeats ? notes.points[begin - length + within]
                                   : ComputeMemory::Point{now, now});
  }
}

StepMemory MemoryReplay::figures(const MemoryInputs& inputs,
                                 const MemoryOptions& options,
                                 const ComputeStart& start,
                                 const ComputeMemory& compute) {
  const MemoryOutline& outline = inputs.outline;
  stop_at_ = -1;
  begin(inputs, unlimited(options), Part::kOthers);
  Bytes of_compute = start.allocated;
  Bytes peak = of_compute;
  size_t point = 0, microbatch = 0;
  for (size_t at = 0; at < outline.items.size(); ++at) {
    if (microbatch < outline.microbatches.size() && at == outline.microbatches[microbatch]) {
      const bool unchanged = begins_as_before(outline, microbatch) && compute.unchanged[microbatch];
      for (const size_t next = begin_microbatch(outline, options, unchanged, microbatch); at < next;
           ++at) {
        point += outline.items[at].compute ? 1 : 0;
      }
      if (at == outline.items.size()) {
        break;
      }
    }
    const MemoryItem& item = outline.items[at];
    Bytes most = of_compute;
    if (item.compute) {
      const ComputeMemory::Point& now = compute.points[point++];
      most = start.allocated + now.most;
      of_compute = start.allocated + now.end;
      if (now.source) {
        units_[item.unit].buffer(item.buffer) = kElsewhere;
      }
    }
    if (concerns_buffer(item)) {
      take(item, outline);
    }
    peak = std::max(peak, most + allocator_.allocated() + std::exchange(staged_, 0));
  }
  const Bytes reserved = start.reserved + compute.reserved + allocator_.reserved();
  if (reserved > options.capacity) {
    return run(inputs, options);
  }
  out_.peak_allocated = peak;
  out_.peak_reserved = reserved;
  return out_;
}

}  // namespace shardlens::sim
