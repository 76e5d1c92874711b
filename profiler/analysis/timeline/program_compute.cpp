#include "profiler/analysis/timeline/program_compute.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

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

// Owners of what CUDA graphs launched: those of the events that it repeats.
class RepeatedOwners {
 public:
  explicit RepeatedOwners(const Timeline& timeline) : timeline_(timeline) {
    std::unordered_set<uint32_t> repeated;
    for (const auto& [event, like] : timeline.repeats) {
      repeated.insert(like);
    }
    for (uint32_t i = 0; i < timeline.device_events.size() && !repeated.empty(); ++i) {
      if (repeated.contains(timeline.device_events[i].event)) {
        at_.emplace(timeline.device_events[i].event, i);
      }
    }
  }

  [[nodiscard]] Owner of(uint32_t event) const {
    const auto pair = std::ranges::lower_bound(timeline_.repeats, event, {},
                                               &std::pair<uint32_t, uint32_t>::first);
    if (pair == timeline_.repeats.end() || pair->first != event) {
      return {};
    }
    const auto like = at_.find(pair->second);
    return like == at_.end() ? Owner{}
                             : timeline_.place(timeline_.device_events[like->second]).owner;
  }

 private:
  const Timeline& timeline_;
  std::unordered_map<uint32_t, uint32_t> at_;  // positions of the repeated events
};

void set_owners(const Sources& sources,
                const std::function<Owner(const DeviceEvent&, const Place&)>& owner_of,
                Timeline& timeline) {
  PlaceIndex places(sources.trace.tracks.size());
  std::vector<Place> own;
  for (std::vector<DeviceEvent>* events : {&timeline.device_events, &timeline.host_events}) {
    for (DeviceEvent& each : *events) {
      Place place = timeline.place(each);
      if (place.owner.section == Section::kNone && each.nature != Nature::kCommunication) {
        place.owner = owner_of(each, place);
        place.basis = place.owner.section == Section::kNone ? place.basis : Basis::kOrder;
      }
      each.place = places.of(place, own);
    }
  }
  timeline.places = std::move(own);
}

}  // namespace

void attribute_program_compute(const Sources& sources,
                               std::vector<OwnerMark> marks,
                               Timeline& timeline) {
  std::ranges::stable_sort(marks, {}, &OwnerMark::at);
  add_optimizer(sources, marks);
  set_owners(
      sources,
      [&](const DeviceEvent& event, const Place& place) {
        return place.basis == Basis::kNone ? owner_at(marks, event.launched) : Owner{};
      },
      timeline);
  if (timeline.captured) {
    const Timeline& known = timeline;
    std::vector<Owner> repeated;
    const RepeatedOwners owners(known);
    for (const DeviceEvent& each : known.device_events) {
      repeated.push_back(owners.of(each.event));
    }
    set_owners(
        sources,
        [&](const DeviceEvent& event, const Place& place) {
          return place.basis == Basis::kNone
                     ? Owner{}
                     : repeated[static_cast<size_t>(&event - timeline.device_events.data())];
        },
        timeline);
  }
}

}  // namespace shardlens::analysis
