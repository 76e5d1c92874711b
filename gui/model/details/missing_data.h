#pragma once

#include <QString>

#include "gui/model/run/run_data.h"

namespace shardlens::gui {

// Sentences, without markup, for a view that has nothing to show: what the run lacks, and what to
// record or open instead.

// Why no collective is exposed in the window.
[[nodiscard]] QString why_nothing_exposed(const RunData& run, const RankData& rank);
// Why the order of collectives of a step cannot be compared.
[[nodiscard]] QString why_no_order(const RankData& rank);
// Why a run with one rank has nothing to compare.
[[nodiscard]] QString why_one_rank(const RunData& run);
// Why no memory was measured; "": it was, or the run was simulated.
[[nodiscard]] QString why_no_memory(const RunData& run);
// Why nothing in the rank's trace belongs to a unit; "": something does.
[[nodiscard]] QString why_no_units(const RankData& rank);
// Why it is not known what launched the work of the rank's device.
[[nodiscard]] QString why_no_launch();

}  // namespace shardlens::gui
