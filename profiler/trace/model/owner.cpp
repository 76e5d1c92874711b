#include "profiler/trace/model/owner.h"

namespace shardlens::trace {
namespace {

constexpr uint32_t kSections = 8;  // ids per unit: a power of two above kSectionCount

}  // namespace

std::string_view name_of(Section section) {
  constexpr std::string_view kNames[] = {"none", "forward",   "loss",     "backward",
                                         "clip", "optimizer", "ambiguous"};
  return kNames[static_cast<size_t>(section)];
}

uint32_t external_id_of(const Owner& owner) {
  if (owner.section == Section::kNone || (owner.unit != kNoUnit && owner.unit >= kMaxUnits)) {
    return 0;
  }
  const uint32_t unit = owner.unit == kNoUnit ? 0 : owner.unit + 1;
  return unit * kSections + static_cast<uint32_t>(owner.section);
}

std::optional<Owner> owner_of_external_id(uint64_t id) {
  const uint64_t section = id % kSections, unit = id / kSections;
  if (section == 0 || section >= static_cast<uint64_t>(Section::kAmbiguous) || unit > kMaxUnits) {
    return std::nullopt;
  }
  return Owner{static_cast<Section>(section),
               unit == 0 ? kNoUnit : static_cast<uint32_t>(unit - 1)};
}

}  // namespace shardlens::trace
