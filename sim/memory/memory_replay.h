#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/plan/resolved_plan.h"
#include "core/plan/unit_sizes.h"
#include "core/schedule/planned/planned.h"
#include "core/workload/workload.h"
#include "sim/memory/caching_allocator.h"
#include "sim/memory/memory_outline.h"
#include "sim/memory/operator_memory.h"
#include "sim/memory/peak_memory.h"

namespace shardlens::sim {

// Inputs of a replay, which must outlive it.
struct MemoryInputs {
  const plan::Workload& workload;
  std::span<const OperatorMemory> operators;  // operator_memory(workload)
  const plan::ResolvedPlan& plan;
  std::span<const plan::UnitSize> sizes;  // plan::unit_sizes(plan)
  std::span<const schedule::PlannedBucket> buckets;
  const MemoryOutline& outline;
};

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
class MemoryReplay {
 public:
  [[nodiscard]] StepMemory run(const MemoryInputs& inputs, const MemoryOptions& options);
  // What the last run() with MemoryOptions::keep_history allocated through `step`, whose outline it
  // was given.
  [[nodiscard]] std::vector<MemoryMoment> history(const schedule::PlannedStep& step) const;

  // The figures of run() without `alive` and `at_peak`. `start` is compute_start() of
  // compute_part(inputs.outline), and `compute` is compute_memory() of that part, possibly of
  // another plan: see same_memory().
  [[nodiscard]] StepMemory figures(const MemoryInputs& inputs,
                                   const MemoryOptions& options,
                                   const ComputeStart& start,
                                   const ComputeMemory& compute);
  // For both, `inputs.outline` is compute's part.
  [[nodiscard]] ComputeStart compute_start(const MemoryInputs& inputs,
                                           const MemoryOptions& options);
  [[nodiscard]] ComputeMemory compute_memory(const MemoryInputs& inputs,
                                             const MemoryOptions& options,
                                             const ComputeStart& start);

 private:
  using Block = CachingAllocator::Block;
  static constexpr Block kNone = 0xffffffffU;
  static constexpr Block kElsewhere = 0xfffffffeU;  // alive, but in the part that is not replayed

  enum class Part : uint8_t { kAll, kCompute, kOthers };

  // Names: see what_name().
  enum class What : uint8_t {
    kShard,
    kOptimizerState,
    kBucket,
    kIgnored,
    kSaved,
    kSavedAgain,
    kHandedOn,
    kUnshardedGradient,
    kUnsharded,
    kGathered,
    kSubShard,
    kReduceInput,
    kReduceOutput,
    kGradient,
    kStaged,
  };
  // A live allocation, by block.
  struct Holder {
    Bytes requested = 0;
    UnitId unit = kNoUnit;
    uint32_t op = 0;  // the operator that saved it or hands it on
    MemoryCategory category = MemoryCategory::kParameters;
    What what = What::kShard;
    bool alive = false;
  };
  struct Unit {
    std::array<Bytes, schedule::kBufferKindCount> bytes{};  // by buffer kind
    Bytes gradient_bytes = 0;                               // shard's gradient, in the master dtype
    // Bytes of gradients that a backward creates (0: the unit has no gradients of its own); the
    // part of them that no operator is known to create; the bytes created so far, in `pieces`.
    Bytes unsharded_gradient_bytes = 0, other_gradient_bytes = 0, gradient_so_far = 0;
    bool has_norms = false, has_other_gradients = false;
    std::vector<Block> pieces;
    Block gradient = kNone;
    // See MemoryOptions::keeps_last_gradient.
    Bytes last_gradient_bytes = 0;
    Block last_gradient = kNone;
    bool casts = false;      // the reduction's output is cast to become the gradient
    Bytes staged_bytes = 0;  // of a shard that comes from the host and is cast
    Bytes step_bytes = 0;    // that the optimizer in backward makes and frees
    // kUnshardedGrad is the pieces in one tensor.
    std::array<Block, schedule::kBufferKindCount> buffers{};
    // By buffer kind; autograd allocates gradients on compute.
    std::array<schedule::Stream, schedule::kBufferKindCount> allocated_on{};
    [[nodiscard]] Block& buffer(schedule::BufferKind kind) {
      return buffers[static_cast<size_t>(kind)];
    }
  };
  // Addresses and sizes of all used and all free blocks.
  struct Snapshot {
    std::vector<std::array<Bytes, 2>> used;
    std::vector<CachingAllocator::FreeBlock> free;
    std::vector<std::array<Bytes, 2>> retired;  // address, and number of kRecord since
    Bytes reserved = 0;
    friend bool operator==(const Snapshot&, const Snapshot&) = default;
  };

  [[nodiscard]] static const char* what_name(What what);
  void begin(const MemoryInputs& inputs, const MemoryOptions& options, Part part);
  void begin_units(const MemoryInputs& inputs, const MemoryOptions& options);
  void replay(const MemoryInputs& inputs, const MemoryOptions& options, ComputeMemory* notes);
  void take_snapshot(Snapshot& now) const;
  [[nodiscard]] bool begins_as_before(const MemoryOutline& outline, size_t microbatch);
  size_t begin_microbatch(const MemoryOutline& outline,
                          const MemoryOptions& options,
                          bool unchanged,
                          size_t& microbatch);
  void note_passed(const MemoryOutline& outline,
                   size_t first,
                   size_t next,
                   ComputeMemory& notes) const;
  void hold_state(const MemoryInputs& inputs, const MemoryOptions& options);
  void take(const MemoryItem& item, const MemoryOutline& outline);
  void operate(uint32_t index);
  void differentiate(uint32_t index);
  void hand_on(uint32_t index, MemoryCategory category);
  void free_after(const OperatorMemory& op);
  void work(uint32_t index);
  void add_gradient(const OperatorMemory& op);
  void flatten_gradient(UnitId id);
  void release(const MemoryItem& item);
  void recompute(uint32_t index);
  void allocate(const MemoryItem& item);
  void store(const MemoryItem& item);
  void stage(const MemoryItem& item);
  void step(const MemoryItem& item);
  Block hold(Bytes bytes,
             schedule::Stream stream,
             MemoryCategory category,
             UnitId unit,
             What what,
             uint32_t op = 0);
  // `later`: another stream than the block's own uses it until now.
  void drop(Block& block, bool later = false);
  void note_peak();
  void list_alive(const MemoryInputs& inputs);
  // Adds to the history what happened since the last call. `item`: of the outline; `op`: index into
  // MemoryOutline::operators, or kNoOperator.
  void note_history(uint32_t item, uint32_t op);

  CachingAllocator allocator_{0};
  Part part_ = Part::kAll;
  std::span<const OperatorMemory> operators_;
  std::vector<Unit> units_;
  std::vector<Block> saved_, remade_;               // by forward operator
  std::vector<std::array<Block, kHanded>> handed_;  // by backward operator
  std::vector<int32_t> users_left_;
  // Tensors between operators: the current input and output, and the output of a recomputed one.
  Block input_ = kNone, output_ = kNone, handed_on_again_ = kNone;
  std::vector<Holder> holders_;  // by block
  std::array<Bytes, kMemoryCategoryCount> by_category_{};
  Bytes requested_ = 0;  // of the live allocations
  int64_t allocations_ = 0, peak_at_ = 0;
  int64_t stop_at_ = -1;   // number of the allocation after which to stop; -1: none
  bool delays_ = false;    // see [Note: Reuse after other streams]
  uint64_t recorded_ = 0;  // kRecord so far
  Bytes staged_ = 0;       // of a copy outside of compute's part, which ended with its item
  bool rising_ = false;    // the last allocation made a new peak that at_peak does not have yet
  bool failed_ = false, stopped_ = false;
  static constexpr uint32_t kNoOperator = 0xffffffffU;
  struct Noted {
    uint32_t item = 0, op = kNoOperator;
    std::array<Bytes, kMemoryCategoryCount> bytes{};
  };
  bool keeps_history_ = false;
  std::vector<Noted> history_;
  // The highest moment since the last call of note_history().
  Bytes highest_ = 0;
  std::array<Bytes, kMemoryCategoryCount> highest_by_category_{};
  Bytes most_ = 0;                           // most allocated bytes since it was set
  Bytes least_large_ = 0, least_small_ = 0;  // as in ComputeMemory
  Snapshot before_, now_;  // at the begin of the previous microbatch, and of the current one
  StepMemory out_;
};

}  // namespace shardlens::sim
