#include "profiler/analysis/figures/attribution_figures.h"

#include <array>

namespace shardlens::analysis {
namespace {

constexpr size_t kNatures = 3;

double share(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

Basis basis_of(Basis basis, bool owned) {
  return basis == Basis::kNone && owned ? Basis::kRange : basis;
}

}  // namespace

std::string_view name_of(Nature nature) {
  constexpr std::array<std::string_view, kNatures> kNames{"compute", "communication", "copy"};
  return kNames[static_cast<size_t>(nature)];
}

std::vector<AttributionFigures> attribution_figures(const Timeline& timeline,
                                                    const IntervalSet& window) {
  std::vector<AttributionFigures> out;
  if (!timeline.captured && !timeline.rewritten) {
    return out;
  }
  std::array<std::array<AttributionFigures, kBasisCount>, kNatures> rows;
  const auto add = [&](Nature nature, Basis basis, const Interval& when) {
    if (contains(window, when.start)) {
      AttributionFigures& row = rows[static_cast<size_t>(nature)][static_cast<size_t>(basis)];
      ++row.count;
      row.time += when.length();
    }
  };
  for (const DeviceEvent& each : timeline.device ? timeline.device_events : timeline.host_events) {
    if (each.nature != Nature::kCommunication) {
      const Place& place = timeline.place(each);
      add(each.nature, basis_of(place.basis, place.owner.section != Section::kNone), each.when);
    }
  }
  for (const Collective& c : timeline.collectives) {
    add(Nature::kCommunication,
        basis_of(c.basis, c.unit.has_value() || c.section != Section::kNone), c.when);
  }
  for (size_t nature = 0; nature < kNatures; ++nature) {
    AttributionFigures all;
    for (const AttributionFigures& row : rows[nature]) {
      all.count += row.count;
      all.time += row.time;
    }
    for (size_t basis = 0; basis < rows[nature].size(); ++basis) {
      AttributionFigures& row = rows[nature][basis];
      if (row.count > 0) {
        row.nature = static_cast<Nature>(nature);
        row.basis = static_cast<Basis>(basis);
        row.count_share = share(row.count, all.count);
        row.time_share = share(row.time, all.time);
        out.push_back(row);
      }
    }
  }
  return out;
}

}  // namespace shardlens::analysis
