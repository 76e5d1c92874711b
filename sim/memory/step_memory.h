#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/units.h"
#include "core/plan/resolved_plan.h"
#include "core/plan/workload.h"
#include "core/schedule/planned.h"

namespace shardlens::sim {

enum class MemoryCategory : uint8_t {
  kParameters,  // shards, in the master dtype
  kGradients,   // of the shards, and unsharded ones before their reduction
  kOptimizer,
  kActivations,    // what forward keeps for backward, and what operators hand on
  kUnsharded,      // gathered parameters
  kCommunication,  // outputs of all-gathers before copy-out, inputs and outputs of reductions
};
inline constexpr int kMemoryCategoryCount = 6;
[[nodiscard]] std::string_view name_of(MemoryCategory category);  // "parameters", …

// Something that lived at the peak; equal ones of a unit are one row.
struct AliveAtPeak {
  MemoryCategory category = MemoryCategory::kParameters;
  UnitId unit = kNoUnit;
  std::string what;  // "unsharded", "saved by aten::mm", …
  Bytes bytes = 0;
  Bytes requested = 0;  // of them, without what the allocator rounds up
  int64_t count = 0;
};

struct MemoryOptions {
  Bytes capacity = 0;            // of the device, what the driver itself takes left out
  int64_t optimizer_states = 2;  // numbers per parameter, in the master dtype: AdamW 2
  bool list_alive = true;
  // The step has more microbatches than its first, two in the middle and its last, which were
  // planned: whether they change nothing is said in StepMemory::alike.
  bool more_microbatches = false;
};

struct StepMemory {
  Bytes peak_allocated = 0, peak_reserved = 0;
  std::array<Bytes, kMemoryCategoryCount> at_peak{};  // of allocated bytes; they sum to the peak
  std::vector<AliveAtPeak> alive;                     // largest first
  bool alike = true;  // false: more_microbatches, but the middle ones leave something behind
  bool fits = true;   // false: an allocation failed; figures are those until then
};

// Replays the allocations of a steady step (optimizer state exists, gradients do not) in issue
// order through the caching allocator.
//
// [Note: Activations] A forward operator's `saved` bytes live from it until the last operator that
// differentiates it; what an operator writes lives until those that take it have run: the next one,
// in backward those that [Note: Who takes a gradient] tells (operator_memory.h). A checkpoint keeps
// its input from forward on; what its operators save is made again when they run again. A
// reduction's output that needs no cast becomes the shard's gradient, as in the engine.
//
// [Note: Gradients] Autograd makes those of a unit one by one, each where an operator of backward
// writes it (those of norms and biases with the unit's first). They stay as they came until their
// reduction, which wants them in one tensor: its input where it casts, another as large as all of
// them where it does not.
//
// [Note: Microbatches] If one microbatch leaves the allocator as it found it, the next one like it
// finds the same and does the same, so it is passed over.
[[nodiscard]] StepMemory step_memory(const plan::Workload& workload,
                                     const plan::ResolvedPlan& plan,
                                     const schedule::PlannedStep& step,
                                     const MemoryOptions& options);

}  // namespace shardlens::sim
