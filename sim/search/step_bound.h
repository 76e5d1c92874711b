#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/units.h"
#include "sim/search/block_plan.h"
#include "sim/search/evaluator.h"

namespace shardlens::sim {

// Lower bounds of the step over all choices of a frame.
//
// [Note: Bounds] Two bounds need no simulation. The streams' own work: all operators one after the
// other, and at the same time all collectives of a communicator one after the other, each unit
// gathered once. And memory: when the last block's backward begins, its parameters and activations,
// the root's parameters, all shards and optimizer states, what the other blocks keep, and the units
// kept after forward exist at the same time. What exceeds the limit must be checkpointed, so at
// least the cheapest selection of blocks that frees as much runs again; if all were checkpointed,
// at least the cheapest selection of units that frees what exceeds is gathered again. (Fractional
// knapsacks; for equal blocks, a whole number of them.) The third bound is the simulated step that
// keeps all parameters without checkpoints and without a limit: a choice can only add collectives
// and operators to it. With other lists than a depth, that step gathers all units as early as
// possible: the root prefetches all.
//
// Threads  an object must be used by one thread at a time.
class StepBounds {
 public:
  explicit StepBounds(Evaluator& evaluator) : evaluator_(evaluator) {}

  // The first two bounds; nullopt: no choice fits. Errors: InputError as evaluate().
  [[nodiscard]] std::optional<Nanoseconds> of_work(const Candidate& frame);
  // The third bound, and the memory that the allocator reserves in that step.
  [[nodiscard]] Nanoseconds of_step(const Candidate& frame) { return step(frame).duration; }
  // The third bound for any prefetch lists.
  [[nodiscard]] Nanoseconds of_lists(const Candidate& frame);
  [[nodiscard]] Bytes memory_of_step(const Candidate& frame) { return step(frame).reserved; }
  // The time of all operators, if `checkpointed` blocks run again.
  [[nodiscard]] Nanoseconds of_compute(const Candidate& frame, size_t checkpointed);
  // Estimate, not a bound: recomputation that is spared if `left` more bytes may be kept.
  [[nodiscard]] Nanoseconds spared(const Candidate& frame, Bytes left);

 private:
  // One microbatch with all blocks checkpointed, compared with none.
  struct Recomputed {
    std::vector<Nanoseconds> again;  // by block
    std::vector<Bytes> freed;        // by block, when the last block's backward begins
  };
  struct Model {
    Nanoseconds compute = 0;  // of a microbatch without checkpoints
    Bytes saved = 0;          // when backward begins
  };
  // The terms that depend on units and mesh.
  struct Sharded {
    Bytes state = 0, gradients = 0;
    Bytes gathered = 0;  // root and last block
    // The other units, all of which could be kept after forward: their all-gathers and bytes.
    std::vector<Nanoseconds> gather;
    std::vector<Bytes> unsharded;
    Nanoseconds optimizer = 0, gathers = 0, reductions = 0, all_reductions = 0;
  };

  using AsPrecision = std::optional<Precision>;
  struct Step {
    Nanoseconds duration = 0;
    Bytes reserved = 0;
  };

  [[nodiscard]] const Step& step(const Candidate& frame);
  [[nodiscard]] const Model& model(const Candidate& frame);
  [[nodiscard]] const Recomputed& recomputed(const Candidate& frame);
  [[nodiscard]] const Sharded& sharded(const Candidate& frame);
  [[nodiscard]] std::vector<int> blocks_of_operators(const plan::Workload& workload) const;

  Evaluator& evaluator_;
  std::map<std::pair<AsPrecision, int64_t>, Model> models_;                 // by batch
  std::map<std::tuple<AsPrecision, int64_t, int>, Recomputed> recomputed_;  // by batch and saves
  std::map<std::tuple<AsPrecision, int64_t, int64_t, bool>, Sharded> sharded_;  // by mesh and units
  std::map<std::tuple<AsPrecision, int64_t, int64_t, int64_t, int16_t, int64_t, bool>, Step> steps_;
};

}  // namespace shardlens::sim
