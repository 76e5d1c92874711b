#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/schedule/planned.h"

namespace shardlens::sim {

// What of a planned step's order allocates or frees.
struct MemoryItem {
  // kFlatten: a reduction is about to read the unit's gradients.
  enum class Kind : uint8_t { kOperators, kBackwardEnd, kAlloc, kFree, kFlatten, kStore };
  Kind kind = Kind::kOperators;
  schedule::BufferKind buffer = schedule::BufferKind::kNone;
  schedule::Stream stream = schedule::Stream::kCompute;
  bool compute = true;          // see [Note: Compute's part]
  UnitId unit = kNoUnit;        // whose buffer
  uint32_t begin = 0, end = 0;  // kOperators: in MemoryOutline::operators, none of them twice
  friend bool operator==(const MemoryItem&, const MemoryItem&) = default;
};

struct MemoryOutline {
  std::vector<MemoryItem> items;
  std::vector<uint32_t> operators;   // indices into Workload::operators, in order
  std::vector<size_t> microbatches;  // items at which they begin
  friend bool operator==(const MemoryOutline&, const MemoryOutline&) = default;
};

// Operators with no hook between them are one item.
[[nodiscard]] MemoryOutline memory_outline(const schedule::PlannedStep& step);

// [Note: Compute's part] Blocks belong to the stream that allocated them, so what compute's pool
// does hangs on its own items alone: operators, and what is allocated on compute. Where parameters
// are gathered into buffers of other streams, plans that differ in when they gather have this part
// in common. Whatever happens to gradients is in it, on any stream, since a later action may ask
// whether a gradient is there.
[[nodiscard]] MemoryOutline compute_part(const MemoryOutline& outline);

// Whether item `at` does what item `before` does.
[[nodiscard]] bool same_item(const MemoryOutline& outline, size_t at, size_t before);

}  // namespace shardlens::sim
