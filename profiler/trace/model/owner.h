#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/base/units.h"

namespace shardlens::trace {

inline constexpr uint32_t kMaxUnits = 1U << 20;  // of a recorded trace

// What part of a step the host was in.
enum class Section : uint8_t { kNone, kForward, kLoss, kBackward, kClip, kOptimizer };
inline constexpr int kSectionCount = 6;
// "forward", …; what belongs to no unit is listed as "<loss>", "<clip>", "<optimizer>", "<none>".
[[nodiscard]] std::string_view name_of(Section section);

// Whom work belongs to that the host launched at some instant.
struct Owner {
  Section section = Section::kNone;
  uint32_t unit = kNoUnit;  // index into Trace::units; of forward and backward only
  friend bool operator==(const Owner&, const Owner&) = default;
};

// "External id" of what our recorder saw launched for an owner: 8 (unit + 1) + section, 0 for
// nobody.
[[nodiscard]] uint32_t external_id_of(const Owner& owner);
// nullopt: no id of ours.
[[nodiscard]] std::optional<Owner> owner_of_external_id(uint64_t id);

}  // namespace shardlens::trace
