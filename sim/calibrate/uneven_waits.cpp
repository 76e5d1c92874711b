#include "sim/calibrate/uneven_waits.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "sim/calibrate/calibrated_cost_model.h"
#include "sim/engine/priced_step.h"
#include "sim/engine/simulator.h"

namespace shardlens::sim {
namespace {

// Of a mean step: waits of all collectives, and of the kinds that a calibration has waits of.
struct SumOfWaits {
  double all = 0, of_kinds = 0;  // ns
  int64_t steps = 0;
  bool matched = false;
};

SumOfWaits sum_of_waits(const Observation& of, std::optional<size_t> rank) {
  SumOfWaits out;
  StepWindows windows;
  for (const ObservedStep& step : of.steps) {
    out.steps += !rank || step.rank == *rank ? 1 : 0;
    windows.add(step);
  }
  for (const ObservedCollective& each : of.collectives) {
    if (each.waited && (!rank || each.rank == *rank) && windows.contain(each)) {
      out.matched = true;
      out.all += static_cast<double>(*each.waited);
      const bool has = static_cast<size_t>(each.kind) < Calibration{}.peer_wait_us.size();
      out.of_kinds += has ? static_cast<double>(*each.waited) : 0;
    }
  }
  return out;
}

// How long a mean rank waits in a step of ranks with unequal work.
double simulated_wait(const Observation& of, Calibration calibration) {
  calibration.peer_wait_us = {};
  const CalibratedCostModel model(calibration);
  const PricedStep step = priced_step(of.workload, of.plan, of.planned, model,
                                      {of.of_ranks.begin(), of.of_ranks.end()});
  const SimulatedStep simulated = simulate(step, {.host = of.host, .keep_times = false});
  double sum = 0;
  for (const SimulatedRank& each : simulated.ranks) {
    sum += static_cast<double>(each.waited);
  }
  return sum / static_cast<double>(simulated.ranks.size());
}

}  // namespace

std::optional<Nanoseconds> measured_wait(const Observation& of, size_t rank) {
  const SumOfWaits waits = sum_of_waits(of, rank);
  return waits.matched && waits.steps > 0
             ? std::optional(std::llround(waits.all / static_cast<double>(waits.steps)))
             : std::nullopt;
}

void settle_waits(std::span<const Observation> observations, Calibration& out) {
  double rest = 0, of_kinds = 0;
  for (const Observation& of : observations) {
    const SumOfWaits measured = sum_of_waits(of, std::nullopt);
    const bool simulates = !of.of_ranks.empty() && !out.curves.empty();
    rest += measured.all -
            (simulates ? simulated_wait(of, out) * static_cast<double>(measured.steps) : 0);
    of_kinds += measured.of_kinds;
  }
  if (of_kinds <= 0 || out.curves.empty()) {
    return;
  }
  for (double& each : out.peer_wait_us) {
    each *= std::max(0.0, rest) / of_kinds;
  }
}

}  // namespace shardlens::sim
