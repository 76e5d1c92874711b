#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/plan/resolved_plan.h"
#include "core/plan/unit_sizes.h"
#include "sim/memory/live_memory.h"
#include "sim/memory/memory_outline.h"
#include "sim/memory/operator_memory.h"

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

// The memory of units through a replay: shards with their states, buffers, and gradients.
class UnitMemory : protected LiveMemory {
 protected:
  struct Unit {
    std::array<Bytes, schedule::kBufferKindCount> bytes{};  // by buffer kind
    // Of the buffers of a reduction, and of the shard's gradient in the master dtype. `rest`: the
    // bytes of the gradient that is held until the reduction was issued.
    struct Reduction {
      Bytes input = 0, output = 0, gradient = 0, rest = 0;
    };
    Reduction all, last, others;  // by Grads
    [[nodiscard]] const Reduction& reduction(Grads grads) const {
      return grads == Grads::kLast ? last : grads == Grads::kOthers ? others : all;
    }
    // Bytes of gradients that a backward creates (0: the unit has no gradients of its own); the
    // part of them that no operator is known to create; the bytes created so far, in `pieces`.
    Bytes unsharded_gradient_bytes = 0, other_gradient_bytes = 0, gradient_so_far = 0;
    bool has_norms = false, has_other_gradients = false;
    std::vector<Block> pieces;
    Block gradient = kNone, gradient_of_others = kNone;
    [[nodiscard]] Block& gradient_of(Grads grads) {
      return grads == Grads::kOthers ? gradient_of_others : gradient;
    }
    Block last_gradient = kNone;  // see MemoryOptions::keeps_last_gradient
    bool casts = false;           // the reduction's output is cast to become the gradient
    Bytes staged_bytes = 0;       // of a shard that comes from the host and is cast
    Bytes step_bytes = 0;         // that the optimizer in backward makes and frees
    // kUnshardedGrad is the pieces in one tensor.
    std::array<Block, schedule::kBufferKindCount> buffers{};
    // By buffer kind; autograd allocates gradients on compute.
    std::array<schedule::Stream, schedule::kBufferKindCount> allocated_on{};
    [[nodiscard]] Block& buffer(schedule::BufferKind kind) {
      return buffers[static_cast<size_t>(kind)];
    }
  };

  void begin(const MemoryInputs& inputs, const MemoryOptions& options, Part part);
  // What the workload's operators say about their units, before they are replayed.
  void add_operators(const MemoryInputs& inputs);
  // What a step keeps from its beginning to its end.
  void hold_state(const MemoryInputs& inputs, const MemoryOptions& options);
  void allocate(const MemoryItem& item);
  void release(const MemoryItem& item);
  void add_gradient(const OperatorMemory& op);
  void flatten_gradient(UnitId id);
  void store(const MemoryItem& item);
  void stage(const MemoryItem& item);
  void step(const MemoryItem& item);

  std::vector<Unit> units_;
  Bytes staged_ = 0;  // of a copy outside of compute's part, which ended with its item

 private:
  bool delays_ = false;  // see [Note: Reuse after other streams]
};

}  // namespace shardlens::sim
