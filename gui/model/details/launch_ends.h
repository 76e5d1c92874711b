#pragma once

#include <cstddef>
#include <optional>

#include "gui/model/run/run_data.h"
#include "gui/model/run/selection_context.h"

namespace shardlens::gui {

// A call of the host, and what it launched on the device.
struct LaunchEnds {
  Selection::Item call, launched;
};

// Of a kernel, a copy or a collective: its launch. Of idle time: the launch of the event that ended
// it. Of a call or an operator of the host: its first launch. nullopt: not in the trace.
[[nodiscard]] std::optional<LaunchEnds> launch_ends(const RankData& rank,
                                                    const Selection::Item& item);

// The end of the launch that is not `item`.
[[nodiscard]] std::optional<Selection::Item> other_end(const RankData& rank,
                                                       const Selection::Item& item);

}  // namespace shardlens::gui
