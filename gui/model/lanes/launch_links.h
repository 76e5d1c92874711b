#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::gui {

// Finds what a call of the host launched.
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

 private:
  std::vector<uint32_t> by_launch_;  // positions in Timeline::device_events
};

// Position of the event in Timeline::device_events; nullopt: it is not one of them.
[[nodiscard]] std::optional<size_t> device_event_of(const trace::Trace& trace,
                                                    const analysis::Timeline& timeline,
                                                    uint32_t event);

}  // namespace shardlens::gui
