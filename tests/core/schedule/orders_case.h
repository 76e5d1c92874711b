#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/schedule/schedule.h"

namespace shardlens::schedule::test {

// One recorded configuration of tests/data/orders.json; field names are those of its schema.
struct OrdersCase {
  // One entry of `its`, with "=i" resolved.
  struct Iteration {
    std::string label;
    std::string events;
    std::vector<int64_t> counts;  // all-gathers forward, backward, reduce-scatters, all-reduces
  };

  std::string id, api, strategy, ac, special, plan, error;
  int64_t blocks = 0, world = 2, replicate = 1, shard = 2;
  bool root = false, xgrad = false, mixed = false, rootp = false, frozen_bias = false;
  bool limit = true, use_orig_params = true;
  nlohmann::json raf, bp;
  int64_t fp = 0;
  std::vector<int64_t> frozen, calls;
  std::optional<int64_t> unused_loss;
  std::vector<Iteration> iterations;
  nlohmann::json sizes;

  [[nodiscard]] bool fsdp1() const { return api == "fsdp1"; }
};

[[nodiscard]] std::vector<OrdersCase> read_orders(const std::string& path);

// A unit of the recorded model: its name in the events, and the parameters' shapes for the sizes.
struct OrdersUnit {
  std::string name;
  std::vector<std::vector<int64_t>> shapes;  // weight, bias, weight, bias ...
  bool frozen = false;
  int64_t modules = 1;
};

// The units in the order of modules(), the root first.
[[nodiscard]] std::vector<OrdersUnit> units_of(const OrdersCase& test);
[[nodiscard]] std::vector<UnitSpec> specs_of(const OrdersCase& test,
                                             const std::vector<OrdersUnit>& units,
                                             plan::Layout layout);
[[nodiscard]] ScheduleOptions options_of(const OrdersCase& test, plan::Layout layout);

// The events of a recorded entry, split at blanks.
[[nodiscard]] std::vector<std::string> tokens_of(const std::string& events);

}  // namespace shardlens::schedule::test
