#pragma once

#include <functional>
#include <string>

#include "core/schedule/planned/planned.h"

namespace shardlens::schedule::test {

// What orders.json calls a unit: "r" the root, "0" the first block.
[[nodiscard]] inline std::string name_in_orders(UnitId unit) {
  return unit == 0 ? "r" : std::to_string(unit - 1);
}

// The step in the codes of orders.json. `name_of`: what a unit is called there.
[[nodiscard]] std::string events_of(
    const PlannedStep& step,
    bool fsdp1,
    const std::function<std::string(UnitId)>& name_of = name_in_orders);

}  // namespace shardlens::schedule::test
