#include "gui/model/details/launch_ends.h"

#include <algorithm>
#include <cstdint>

#include "gui/model/details/idle_reason.h"

namespace shardlens::gui {
namespace {

using analysis::DeviceEvent;

Selection::Item item_of(const RankData& rank, size_t of_rank, const DeviceEvent& event) {
  const auto& all = rank.timeline.collectives;
  auto found = std::ranges::lower_bound(all, event.when.start, {},
                                        [](const auto& c) { return c.when.start; });
  while (found != all.end() && found->event != event.event &&
         found->when.start == event.when.start) {
    ++found;
  }
  return found != all.end() && found->event == event.event
             ? Selection::Item{of_rank, Lane::Source::kCollectives,
                               static_cast<uint32_t>(found - all.begin())}
             : Selection::Item{of_rank, Lane::Source::kEvents, event.event};
}

std::optional<size_t> first_of_operator(const RankData& rank, const trace::Event& op) {
  for (const Lane& lane : rank.lanes) {
    for (size_t row = 0; lane.name == Lane::kCalls && row < lane.rows.size(); ++row) {
      const LaneItems items = lane.rows[row].items();
      for (size_t i = lane.rows[row].first_ending_after(op.start);
           i < items.size() && items[i].start < op.end(); ++i) {
        const auto first = rank.trace.events[items[i].ref].track == op.track
                               ? rank.links.first_of(rank.timeline, items[i].ref)
                               : std::nullopt;
        if (first) {
          return first;
        }
      }
    }
  }
  return std::nullopt;
}

std::optional<size_t> position_of(const RankData& rank, const Selection::Item& item) {
  switch (item.source) {
    case Lane::Source::kCollectives:
    case Lane::Source::kExposed:
      return device_event_of(rank.trace, rank.timeline, rank.timeline.collectives[item.ref].event);
    case Lane::Source::kIdle:
      return idle_reason(rank, item.ref).ended_by;
    case Lane::Source::kEvents:
      break;
    case Lane::Source::kSections:
    case Lane::Source::kResidency:
    case Lane::Source::kRegions:
      return std::nullopt;
  }
  if (const auto own = device_event_of(rank.trace, rank.timeline, item.ref)) {
    return own;
  }
  const auto launched = rank.links.first_of(rank.timeline, item.ref);
  const trace::Event& event = rank.trace.events[item.ref];
  return !launched && event.category == trace::Category::kCpuOp ? first_of_operator(rank, event)
                                                                : launched;
}

}  // namespace

std::optional<LaunchEnds> launch_ends(const RankData& rank, const Selection::Item& item) {
  const auto position = rank.timeline.device ? position_of(rank, item) : std::nullopt;
  if (!position || rank.timeline.device_events[*position].launch == trace::kNoIndex) {
    return std::nullopt;
  }
  const DeviceEvent& event = rank.timeline.device_events[*position];
  return LaunchEnds{{item.rank, Lane::Source::kEvents, event.launch},
                    item_of(rank, item.rank, event)};
}

std::optional<Selection::Item> other_end(const RankData& rank, const Selection::Item& item) {
  const auto ends = launch_ends(rank, item);
  if (!ends) {
    return std::nullopt;
  }
  const bool host =
      item.source == Lane::Source::kEvents && !device_event_of(rank.trace, rank.timeline, item.ref);
  return host ? ends->launched : ends->call;
}

}  // namespace shardlens::gui
