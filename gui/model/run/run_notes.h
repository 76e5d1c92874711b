#pragma once

#include <QString>
#include <QStringList>

#include "gui/model/run/run_data.h"

namespace shardlens::gui {

// Whether the run's traces were written by the simulator.
[[nodiscard]] bool is_simulated(const RunData& run);

// What a user must know before reading the run's numbers: it is simulated, the plan next to it
// could not be used and why, traces are empty. One sentence each; usually there are none.
[[nodiscard]] QStringList notes_of(const RunData& run);

}  // namespace shardlens::gui
