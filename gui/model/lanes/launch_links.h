#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::gui {

// Finds what a call of the host launched. The device events of one call are neighbours, by start.
//
// Memory  4 bytes per device event.
class LaunchLinks {
 public:
  LaunchLinks() = default;
  LaunchLinks(const trace::Trace& trace, const analysis::Timeline& timeline);
  // The first device event of the call, as position in Timeline::device_events; nullopt: none.
  // Both are indices into Trace::events or refer to the timeline that this was made of.
  [[nodiscard]] std::optional<size_t> first_of(const analysis::Timeline& timeline,
                                               uint32_t call) const;

  // Positions in Timeline::device_events, by launch; without those whose launch is not known.
  [[nodiscard]] const std::vector<uint32_t>& positions() const { return by_launch_; }

 private:
  std::vector<uint32_t> by_launch_;
};

// Position of the event in Timeline::device_events; nullopt: it is not one of them.
[[nodiscard]] std::optional<size_t> device_event_of(const trace::Trace& trace,
                                                    const analysis::Timeline& timeline,
                                                    uint32_t event);

}  // namespace shardlens::gui
