#include "profiler/analysis/timeline/program_compute.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace shardlens::analysis {
namespace {

Owner owner_at(const std::vector<OwnerMark>& marks, Nanoseconds at) {
  const auto after = std::ranges::upper_bound(marks, at, {}, &OwnerMark::at);
  return after == marks.begin() ? Owner{} : std::prev(after)->owner;
}

// The optimizer's ranges take precedence; after each, the owner before it goes on.
void add_optimizer(const Sources& sources, std::vector<OwnerMark>& marks) {
  std::vector<OwnerMark> more;
  sources.lists.for_annotations_named(
      sources.trace, [](std::string_view name) { return name.starts_with("Optimizer."); },
      [&](uint32_t i) {
        const trace::Event& event = sources.trace.events[i];
        if (event.category == trace::Category::kUserAnnotation &&
            owner_at(marks, event.start).section == Section::kNone) {
          more.push_back({event.start, {Section::kOptimizer, kNoUnit}});
          more.push_back({event.end(), {}});
        }
      });
  marks.insert(marks.end(), more.begin(), more.end());
  std::ranges::stable_sort(marks, {}, &OwnerMark::at);
}

}  // namespace

void attribute_program_compute(const Sources& sources,
                               std::vector<OwnerMark> marks,
                               Timeline& timeline) {
  std::ranges::stable_sort(marks, {}, &OwnerMark::at);
  add_optimizer(sources, marks);
  PlaceIndex places(sources.trace.tracks.size());
  std::vector<Place> own;
  for (std::vector<DeviceEvent>* events : {&timeline.device_events, &timeline.host_events}) {
    for (DeviceEvent& each : *events) {
      Place place = timeline.place(each);
      if (place.owner.section == Section::kNone && each.nature != Nature::kCommunication) {
        place.owner = owner_at(marks, each.launched);
        place.basis = place.owner.section == Section::kNone ? Basis::kNone : Basis::kOrder;
      }
      each.place = places.of(place, own);
    }
  }
  timeline.places = std::move(own);
}

}  // namespace shardlens::analysis
