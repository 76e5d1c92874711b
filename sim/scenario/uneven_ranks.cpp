#include "sim/scenario/uneven_ranks.h"

#include <cstddef>
#include <utility>

namespace shardlens::sim {

Bytes UnevenRank::sent() const {
  Bytes out = 0;
  for (const Exchange& each : exchanges) {
    out += each.bytes.sent;
  }
  return out;
}

Bytes UnevenRank::received() const {
  Bytes out = 0;
  for (const Exchange& each : exchanges) {
    out += each.bytes.received;
  }
  return out;
}

std::vector<UnevenRank> uneven_ranks(const Prediction& prediction) {
  std::vector<UnevenRank> out;
  const PricedStep& step = prediction.priced;
  if (step.of_ranks == nullptr) {
    return out;
  }
  for (size_t rank = 0; rank < step.of_ranks->size(); ++rank) {
    const SimulatedRank& simulated = prediction.step.ranks.at(rank);
    UnevenRank& made = out.emplace_back();
    made.compute = simulated.figures.compute;
    made.waited = simulated.waited;
    if (prediction.baseline && rank < prediction.baseline->waits.size()) {
      made.measured_wait = prediction.baseline->waits[rank];
    }
    const RankWorkload& own = (*step.of_ranks)[rank];
    for (size_t i = 0; i < own.workload.communications.size(); ++i) {
      const plan::Communication& each = own.workload.communications[i];
      if (each.kind == CollectiveKind::kAllToAll) {
        made.exchanges.push_back({each.module, own.exchanged.at(i)});
      }
    }
  }
  return out;
}

}  // namespace shardlens::sim
