#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/base/units.h"

namespace shardlens::trace {

inline constexpr uint32_t kMaxUnits = 1U << 20;  // limit for a recorded trace

// The part of a step that the host was executing.
// kAmbiguous: of a CUDA graph, and it may belong to more than one of them or to several units.
enum class Section : uint8_t { kNone, kForward, kLoss, kBackward, kClip, kOptimizer, kAmbiguous };
inline constexpr int kSectionCount = 7;
// "forward", …. Work that belongs to no unit is listed as "<loss>", "<clip>", "<optimizer>",
// "<ambiguous>" or "<none>".
[[nodiscard]] std::string_view name_of(Section section);

// The section and unit that the host was executing when it launched some work.
struct Owner {
  Section section = Section::kNone;
  uint32_t unit = kNoUnit;  // index into Trace::units; only for forward and backward
  friend bool operator==(const Owner&, const Owner&) = default;
};

// The "External id" that Shardlens's recorder gives to work launched for an owner: 8 (unit + 1) +
// section; 0: no owner.
[[nodiscard]] uint32_t external_id_of(const Owner& owner);
// nullopt if `id` is not such an id.
[[nodiscard]] std::optional<Owner> owner_of_external_id(uint64_t id);

}  // namespace shardlens::trace
