#pragma once

#include <QString>
#include <QStringList>

#include "gui/model/run/run_data.h"

namespace shardlens::gui {

// Whether the run's traces were written by the simulator.
[[nodiscard]] bool is_simulated(const RunData& run);

// Notes that a user must read before the run's numbers: it is simulated, its plan could not be used
// and why, traces are empty. One sentence each; usually there are none.
[[nodiscard]] QStringList notes_of(const RunData& run);

}  // namespace shardlens::gui
