#pragma once

#include <nlohmann/json.hpp>

#include "sim/scenario/scenario.h"

namespace shardlens::sim {

// A prediction as `simulate --json`, `gui --figures` and the report write it; docs/cli.md has the
// keys. Times are nanoseconds. null: not known.
[[nodiscard]] nlohmann::ordered_json prediction_json(const Prediction& prediction);

}  // namespace shardlens::sim
