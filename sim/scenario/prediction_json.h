#pragma once

#include <nlohmann/json.hpp>

#include "sim/scenario/scenario.h"

namespace shardlens::sim {

// A prediction in the format that `simulate --json`, `gui --figures` and the report write;
// docs/cli.md describes the keys. Times are in nanoseconds. null: unknown.
[[nodiscard]] nlohmann::ordered_json prediction_json(const Prediction& prediction);

}  // namespace shardlens::sim
