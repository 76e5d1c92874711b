#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/schedule/planned/planned.h"

namespace shardlens::sim {

// An item of a planned step's order that allocates or frees memory.
struct MemoryItem {
  // kFlatten: a reduction is about to read the unit's gradients. kStage: a copy from or to the host
  // of values in another dtype than `buffer`. kRecord, kPassed: see [Note: Passed by compute].
  // kStep: the optimizer has used the gradient.
  enum class Kind : uint8_t {
    kOperators,
    kBackwardEnd,
    kAlloc,
    kFree,
    kFlatten,
    kStore,
    kStage,
    kRecord,
    kPassed,
    kStep
  };
  Kind kind = Kind::kOperators;
  schedule::BufferKind buffer = schedule::BufferKind::kNone;
  schedule::Stream stream = schedule::Stream::kCompute;
  bool compute = true;          // see [Note: Compute's part]
  UnitId unit = kNoUnit;        // the buffer's unit
  uint32_t begin = 0, end = 0;  // kOperators: range in MemoryOutline::operators; no two overlap
  Grads grads = Grads::kAll;    // of a reduction and its buffers, as in Action
  uint32_t later = 0;           // kPassed: how many kRecord came after the one it is about
  friend bool operator==(const MemoryItem&, const MemoryItem&) = default;
};

struct MemoryOutline {  // what of a step can change memory
  std::vector<MemoryItem> items;
  std::vector<uint32_t> operators;  // and communications in order, by plan::number_of()
  // Index of each microbatch's first item. After three that more could follow (PlannedStep::tail),
  // also of what follows them, which begins with the memory with which a fourth one would.
  std::vector<size_t> microbatches;
  size_t tail = 0;  // the first item after the last microbatch, if PlannedStep::tail is known
  friend bool operator==(const MemoryOutline&, const MemoryOutline&) = default;
};

// False: the item runs operators or ends a backward.
[[nodiscard]] inline bool concerns_buffer(const MemoryItem& item) {
  return item.kind != MemoryItem::Kind::kOperators && item.kind != MemoryItem::Kind::kBackwardEnd;
}

// Operators and communications with no hook or memory action between them are one item.
// `operators`: how many the workload has.
[[nodiscard]] MemoryOutline memory_outline(const schedule::PlannedStep& step, size_t operators);
// Outline of a step of one microbatch, or of three, of which the third repeats the second one.
// `two`: of the step with two, whose tail is known.
[[nodiscard]] MemoryOutline with_microbatches(const MemoryOutline& two, size_t microbatches);
// The index of each item of the outline in PlannedStep::order; of kOperators the first one.
[[nodiscard]] std::vector<uint32_t> outline_positions(const schedule::PlannedStep& step);

// [Note: Passed by compute] FSDP1's limiter makes the host wait until compute has passed an earlier
// point of its work. kRecord is such a point, kPassed such a wait; both are in every part.

// [Note: Compute's part] Blocks belong to the stream that allocated them, so the compute stream's
// pool depends only on its own items: operators, and buffers allocated on the compute stream. If
// parameters are gathered into buffers of other streams, plans that differ only in when they gather
// share this part. Items that concern gradients are in it on any stream, because later actions
// depend on whether a gradient exists; on which other stream, makes no difference. A reduction's
// output is allocated again before each action that asks whether it exists, so when another stream
// frees it makes no difference either.
[[nodiscard]] MemoryOutline compute_part(const MemoryOutline& outline);

// Whether items `at` and `before` do the same.
[[nodiscard]] bool same_item(const MemoryOutline& outline, size_t at, size_t before);

}  // namespace shardlens::sim
