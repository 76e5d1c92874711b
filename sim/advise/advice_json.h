#pragma once

#include <nlohmann/json.hpp>

#include "sim/advise/advise.h"

namespace shardlens::sim {

// The format of `advise --json` and of the report; docs/reference/cli.md describes the keys. Times
// are in nanoseconds, sizes in bytes.
[[nodiscard]] nlohmann::ordered_json advice_json(const Advice& advice);

}  // namespace shardlens::sim
