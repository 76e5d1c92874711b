#pragma once

#include <QString>

#include "gui/model/run/run_data.h"

namespace shardlens::gui {

// What a view says when the run has nothing for it: what is missing, and what to record or open to
// get it. Sentences without markup.

// Of a window in which no collective is exposed.
[[nodiscard]] QString why_nothing_exposed(const RunData& run, const RankData& rank);
// Of a step whose order of collectives cannot be compared.
[[nodiscard]] QString why_no_order(const RankData& rank);
// Of a run with one rank.
[[nodiscard]] QString why_one_rank(const RunData& run);
// Why no memory was measured; "": it was, or the run was simulated.
[[nodiscard]] QString why_no_memory(const RunData& run);
// Why nothing in the rank's trace belongs to a unit; "": something does.
[[nodiscard]] QString why_no_units(const RankData& rank);
// Why it is not known what launched the work of the rank's device.
[[nodiscard]] QString why_no_launch();

}  // namespace shardlens::gui
