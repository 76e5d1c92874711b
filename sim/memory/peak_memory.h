#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/units.h"
#include "sim/engine/priced_step.h"

namespace shardlens::sim {

enum class MemoryCategory : uint8_t {  // what memory is used for
  kParameters,                         // shards, in the master dtype
  kGradients,  // gradients of the shards, and unsharded ones before their reduction
  kOptimizer,
  kActivations,    // tensors that forward keeps for backward, and tensors between operators
  kUnsharded,      // gathered parameters
  kCommunication,  // outputs of all-gathers before copy-out, inputs and outputs of reductions
};
inline constexpr int kMemoryCategoryCount = 6;
[[nodiscard]] std::string_view name_of(MemoryCategory category);  // "parameters", …

// A live allocation at the peak; several of the same kind and unit are one row.
struct AliveAtPeak {
  MemoryCategory category = MemoryCategory::kParameters;
  UnitId unit = kNoUnit;
  std::string what;  // "unsharded", "saved by aten::mm", …
  Bytes bytes = 0;
  Bytes requested = 0;  // `bytes` without the allocator's rounding
  int64_t count = 0;
};

// What allocations are for; those of the same kind and unit have one holder.
struct MemoryHolder {
  MemoryCategory category = MemoryCategory::kParameters;
  UnitId unit = kNoUnit;
  std::string what;  // as AliveAtPeak::what
};

// An allocation, or its end.
struct MemoryChange {
  uint32_t holder = 0;  // index into StepMemory::holders
  Bytes bytes = 0;      // negative: freed
};

// What was allocated at a moment of a step.
struct MemoryMoment {
  uint32_t item = 0;  // index into PlannedStep::order
  std::array<Bytes, kMemoryCategoryCount> bytes{};
  uint32_t changes = 0;  // the sums of this many StepMemory::changes
  [[nodiscard]] Bytes sum() const { return std::accumulate(bytes.begin(), bytes.end(), Bytes{0}); }
};

struct MemoryOptions {           // what is replayed, and what is listed
  Bytes capacity = 0;            // of the device, without what the driver itself takes
  int64_t optimizer_states = 2;  // numbers per parameter, in the master dtype; 2 for AdamW
  bool list_alive = true;
  bool keep_history = false;  // fill StepMemory::history, changes and holders
  // PyTorch's FSDP2 (torch 2.11) refers to the gradient of a unit's last parameter until the
  // reduction is done, although it was copied into the reduction's input.
  bool keeps_last_gradient = false;
  // On a device: see [Note: Reuse after other streams].
  bool delays_reuse = false;
  bool expandable_segments = false;  // see [Note: Expandable segments]
  // The step has more microbatches than the four planned ones (the first, two in the middle, the
  // last). StepMemory::alike states whether the further ones leave memory unchanged.
  bool more_microbatches = false;
};

struct StepMemory {  // memory of a step on one rank
  Bytes peak_allocated = 0, peak_reserved = 0;
  // The most bytes of tensors at a time, without the allocator's rounding; 0: not counted.
  Bytes peak_requested = 0;
  std::array<Bytes, kMemoryCategoryCount> at_peak{};  // allocated bytes; they sum to the peak
  std::vector<AliveAtPeak> alive;                     // largest first
  // In the order of the host: the highest moment of everything that changed memory, and the memory
  // after it.
  std::vector<MemoryMoment> history;
  // Everything that was allocated and freed, from the start of the step on, and for what.
  std::vector<MemoryChange> changes;
  std::vector<MemoryHolder> holders;
  bool alike = true;  // false: more_microbatches, but a middle one leaves memory changed
  // false: an allocation failed. step_memory() then has the figures of the same step without a
  // limit, so peak_reserved is more than the capacity; MemoryReplay has those until then.
  bool fits = true;
};

// Replays the allocations of a steady step (optimizer state exists, gradients do not) in issue
// order through the caching allocator.
//
// [Note: Activations] A forward operator's `saved` bytes live from it until the last operator that
// differentiates it. An operator's output lives until all operators that take it have run: in
// forward the next one, in backward those of [Note: Who takes a gradient] (operator_memory.h). A
// checkpoint keeps its input from forward on; the tensors that its operators save are allocated
// again when the operators run again. A reduction's output that needs no cast becomes the shard's
// gradient, as in the engine.
//
// [Note: Gradients] Autograd creates the gradients of a unit one by one, each when an operator of
// backward writes it (those of all norms and biases with the unit's first norm; without norms, with
// its first gradient). They are separate tensors until their reduction, which needs them in one
// tensor: the reduction's input if it casts, otherwise another tensor of their total size.
//
// [Note: Reuse after other streams] PyTorch's FSDP1 calls record_stream() for what another stream
// than the allocating one uses last: unsharded parameters (allocated for the all-gather, used by
// compute) and gradients (computed on compute, read by the reduction). The allocator reuses them
// after an event on that stream, which it looks at when the host allocates. How far the host is
// ahead is not known here, so it is taken to be as far ahead as the plan allows: what was freed can
// be used again when the limiter has made the host wait for compute to pass a later point. (That
// the reduction has read its gradients by then is an assumption: it has, if it ends within the next
// unit's backward.) Without the limiter nothing is used again within the step. FSDP2 orders streams
// by events instead and reuses at once.
// Source  torch 2.11 _flat_param.py (_free_unsharded_flat_param), _runtime_utils.py (_reduce_grad),
//         CUDACachingAllocator.cpp (insert_events, process_events).
//
// [Note: Microbatches] If one microbatch leaves the allocator as it found it, an identical next one
// finds and does the same, so it is skipped.
//
// The durations of `step` are not read.
[[nodiscard]] StepMemory step_memory(const PricedStep& step, const MemoryOptions& options);

}  // namespace shardlens::sim
