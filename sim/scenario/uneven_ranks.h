#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "sim/engine/rank_workload.h"
#include "sim/scenario/scenario.h"

namespace shardlens::sim {

// What a rank sends and receives in an all-to-all of a microbatch.
struct Exchange {
  std::string module;
  ExchangedBytes bytes;
};

// A rank of a predicted step whose ranks have unequal work: rows of a recorded run's experts.
struct UnevenRank {
  Nanoseconds compute = 0;
  Nanoseconds waited = 0;                    // its collectives, for later ranks
  std::optional<Nanoseconds> measured_wait;  // the same in the recorded run, under its own plan
  std::vector<Exchange> exchanges;           // in order

  [[nodiscard]] Bytes sent() const;  // in all exchanges
  [[nodiscard]] Bytes received() const;
};

// By rank; empty if all ranks are alike.
[[nodiscard]] std::vector<UnevenRank> uneven_ranks(const Prediction& prediction);

}  // namespace shardlens::sim
