// The replay in two parts: the compute stream's pool, which plans share, and the other pools.
#include <algorithm>
#include <limits>
#include <utility>

#include "sim/memory/memory_replay.h"
#include "sim/memory/passed_points.h"

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
  UnitMemory::begin(inputs, unlimited(options), Part::kCompute);
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

std::optional<size_t> items_in_common(const MemoryOutline& outline, const MemoryOutline& longer) {
  const auto [own, other] = std::ranges::mismatch(outline.items, longer.items);
  if (std::any_of(own, outline.items.end(), concerns_buffer)) {
    return std::nullopt;
  }
  return static_cast<size_t>(own - outline.items.begin());
}

OthersMemory MemoryReplay::others_memory(const MemoryInputs& inputs,
                                         const MemoryOptions& options,
                                         const ComputeMemory& compute) {
  const MemoryOutline& outline = inputs.outline;
  stop_at_ = -1;
  begin(inputs, unlimited(options), Part::kOthers);
  OthersMemory out;
  out.points.reserve(outline.items.size());
  out.unchanged.assign(outline.microbatches.size(), false);
  size_t of_compute = 0, microbatch = 0;
  for (size_t at = 0; at < outline.items.size(); ++at) {
    if (microbatch < outline.microbatches.size() && at == outline.microbatches[microbatch]) {
      const size_t first = microbatch;
      const bool unchanged = begins_as_before(outline, microbatch);
      const size_t next = begin_microbatch(outline, options, unchanged, microbatch);
      const Bytes now = allocator_.allocated();
      note_passed(outline, first, next, {now, now, allocator_.reserved()}, out.points);
      std::fill(out.unchanged.begin() + static_cast<std::ptrdiff_t>(first),
                out.unchanged.begin() + static_cast<std::ptrdiff_t>(microbatch), unchanged);
      for (; at < next; ++at) {
        of_compute += outline.items[at].compute ? 1 : 0;
      }
      if (at == outline.items.size()) {
        break;
      }
    }
    const MemoryItem& item = outline.items[at];
    if (item.compute && compute.points[of_compute++].source) {
      units_[item.unit].buffer(item.buffer) = kElsewhere;
    }
    if (concerns_buffer(item)) {
      take(item, outline);
    }
    const Bytes now = allocator_.allocated();
    out.points.push_back({now + std::exchange(staged_, 0), now, allocator_.reserved()});
  }
  return out;
}

StepMemory MemoryReplay::figures(const MemoryInputs& inputs,
                                 const MemoryOptions& options,
                                 const ComputeStart& start,
                                 const ComputeMemory& compute,
                                 const OthersMemory& others,
                                 size_t in_common) {
  const MemoryOutline& outline = inputs.outline;
  const OthersMemory::Point last =
      in_common == 0 ? OthersMemory::Point{} : others.points[in_common - 1];
  Bytes of_compute = 0, peak = 0;  // in addition to the start
  const ComputeMemory::Point* point = compute.points.data();
  for (size_t at = 0; at < outline.items.size(); ++at) {
    Bytes most = of_compute;
    if (outline.items[at].compute) {
      most = point->most;
      of_compute = point->end;
      ++point;
    }
    peak = std::max(peak, most + (at < in_common ? others.points[at].most : last.end));
  }
  const Bytes reserved = start.reserved + compute.reserved + last.reserved;
  if (reserved > options.capacity) {
    return run(inputs, options);
  }
  StepMemory out;
  for (size_t each = 2; options.more_microbatches && each < outline.microbatches.size(); ++each) {
    out.alike = (others.unchanged[each] && compute.unchanged[each]) || (each > 2 && out.alike);
  }
  out.peak_allocated = start.allocated + peak;
  out.peak_reserved = reserved;
  return out;
}

}  // namespace shardlens::sim
