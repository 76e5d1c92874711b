#pragma once

#include <span>

#include <nlohmann/json.hpp>

#include "sim/scenario/scenario.h"

namespace shardlens::sim {

// A prediction in the format that `simulate --json`, `gui --figures` and the report write;
// docs/reference/cli.md describes the keys. Times are in nanoseconds. null: unknown.
[[nodiscard]] nlohmann::ordered_json prediction_json(const Prediction& prediction);

// A baseline, in the same format.
[[nodiscard]] nlohmann::ordered_json baseline_json(const Baseline& baseline);

// The far ones of a prediction's extrapolations, in the same format.
[[nodiscard]] nlohmann::ordered_json extrapolations_json(std::span<const Extrapolation> all);

}  // namespace shardlens::sim
