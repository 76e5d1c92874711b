#pragma once

#include <QString>
#include <QStringList>

#include "gui/model/run_data.h"

namespace shardlens::gui {

// Whether its traces are the simulator's.
[[nodiscard]] bool is_simulated(const RunData& run);

// What whoever opens the run must know before reading a number: that it is simulated, that a plan
// beside it was not taken and why, that traces are empty. One sentence each; none is usual.
[[nodiscard]] QStringList notes_of(const RunData& run);

}  // namespace shardlens::gui
