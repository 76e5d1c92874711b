#pragma once

#include <optional>
#include <vector>

#include "sim/memory/operator_tensors.h"

namespace shardlens::sim {

// What the compute stream's pool has before the first item of a step: what the step keeps from its
// beginning to its end.
struct ComputeStart {
  Bytes allocated = 0, reserved = 0;
  std::vector<CachingAllocator::FreeBlock> free;
  std::vector<Bytes> sizes;  // of what is allocated later, except by forward's and backward's work
};

// Memory of the compute stream's pool through a step, in addition to its start, without a memory
// limit.
struct ComputeMemory {
  struct Point {
    Bytes most = 0, end = 0;  // allocated bytes: maximum while the item runs, and after it
    bool source = false;      // kStore: the stored buffer is in this pool
  };
  std::vector<Point> points;    // by item of the part
  std::vector<bool> unchanged;  // by microbatch: it begins with the same memory as the previous one
  Bytes reserved = 0;
  Bytes least_large = 0, least_small = 0;  // smallest allocation of each of the stream's two pools
};

// Memory of the pools of all other streams through a step, without a memory limit. Operators have
// no part in it, so it is the same for any size of microbatch.
struct OthersMemory {
  struct Point {
    // Allocated bytes while the item runs, and after it; reserved bytes.
    Bytes most = 0, end = 0, reserved = 0;
  };
  std::vector<Point> points;    // by item of the outline
  std::vector<bool> unchanged;  // as in ComputeMemory
};

// How many items of `longer` are those of `outline`, which then has only items that concern no
// buffer: up to there memory of the other streams is the same for both, and later unchanged.
// nullopt: it has others.
[[nodiscard]] std::optional<size_t> items_in_common(const MemoryOutline& outline,
                                                    const MemoryOutline& longer);

// Whether compute_memory() is the same for both starts, if it is `memory` for one of them and the
// operators and the compute part are the same.
//
// [Note: Equal starts] What a step keeps is never freed, so all that later allocations see of it
// are the free blocks that it leaves, each next to a block that stays. Those that are smaller than
// every allocation make no difference. In most plans that differ only in the number of their shards
// there are no others.
[[nodiscard]] bool same_memory(const ComputeMemory& memory,
                               const ComputeStart& one,
                               const ComputeStart& other);

// step_memory() for repeated calls: storage is kept between runs.
//
// Threads  an object must be used by one thread at a time.
class MemoryReplay : OperatorTensors {
 public:
  [[nodiscard]] StepMemory run(const MemoryInputs& inputs, const MemoryOptions& options);
  // Moves what the last run() with MemoryOptions::keep_history allocated through `step`, whose
  // outline it was given, to `out`.
  void take_history(const MemoryInputs& inputs,
                    const schedule::PlannedStep& step,
                    StepMemory& out) {
    out.history = history_of(step);
    take_changes(inputs.workload, out);
  }

  // The figures of run() without `alive` and `at_peak`. `start` is compute_start() of
  // compute_part(inputs.outline), and `compute` is compute_memory() of that part, possibly of
  // another plan: see same_memory(). `others` is others_memory() of the outline, or of one that has
  // its first `in_common` items and more (items_in_common()).
  [[nodiscard]] StepMemory figures(const MemoryInputs& inputs,
                                   const MemoryOptions& options,
                                   const ComputeStart& start,
                                   const ComputeMemory& compute,
                                   const OthersMemory& others,
                                   size_t in_common);
  // `compute`: as for figures().
  [[nodiscard]] OthersMemory others_memory(const MemoryInputs& inputs,
                                           const MemoryOptions& options,
                                           const ComputeMemory& compute);
  // For both, `inputs.outline` is compute's part.
  [[nodiscard]] ComputeStart compute_start(const MemoryInputs& inputs,
                                           const MemoryOptions& options);
  [[nodiscard]] ComputeMemory compute_memory(const MemoryInputs& inputs,
                                             const MemoryOptions& options,
                                             const ComputeStart& start);

 private:
  void replay(const MemoryInputs& inputs, const MemoryOptions& options, ComputeMemory* notes);
  [[nodiscard]] bool begins_as_before(const MemoryOutline& outline, size_t microbatch);
  size_t begin_microbatch(const MemoryOutline& outline,
                          const MemoryOptions& options,
                          bool unchanged,
                          size_t& microbatch);
  void take(const MemoryItem& item, const MemoryOutline& outline);

  Snapshot before_, now_;  // at the start of the previous microbatch, and of the current one
};

}  // namespace shardlens::sim
