#pragma once

#include "core/workload/software.h"

namespace CLI {
class App;
}

namespace shardlens::cli {

// Adds the flags of what a step runs under. Call it after --workload and --calibration were added,
// whose operators are those of the software that they ran under. `software` must outlive `app`.
void add_software_options(CLI::App& app, plan::Software& software);

}  // namespace shardlens::cli
