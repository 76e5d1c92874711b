#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/engine/machine.h"
#include "sim/engine/priced_step.h"
#include "sim/engine/repeated.h"

namespace shardlens::sim {

// kAhead: the host issues work and runs ahead, as on CUDA. kCompute: the host itself computes, as
// in CPU runs: the host waits whenever compute waits, and each communicator is one thread.
enum class HostMode : uint8_t { kAhead, kCompute };

struct ItemRange {  // of PlannedStep::order, [from, to)
  size_t from = 0, to = 0;
};

struct SimulationOptions {  // what is simulated, and what is kept
  HostMode host = HostMode::kAhead;
  // The training loop reads the loss before it calls backward; otherwise only at the end of the
  // step.
  bool waits_for_loss = false;
  bool keep_times = true;  // false: only figures
  // Number of microbatches in addition to the four planned ones, identical to the middle ones: see
  // alike.h; or to two planned ones, of which the second is `repeated`. Requires keep_times and
  // identical ranks.
  int64_t more_microbatches = 0;
  // repeated_microbatches() of the step. If they only add time (repeated.h), they are not simulated
  // one by one, and no times are kept. Only for identical ranks.
  std::optional<RepeatedMicrobatches> repeated = std::nullopt;
  ItemRange left_out = {};  // whole microbatches that the step does not have
  // Factor on each rank's compute times; empty: 1. If it is, and the ranks' costs do not differ
  // either, all ranks are identical, and only one is simulated.
  std::vector<double> rank_slowdown = {};
};

struct SimulatedRank {  // one rank of a simulated step
  StepFigures figures;
  std::vector<ItemTimes> items;  // by index into PlannedStep::order; empty without keep_times
  Nanoseconds waited = 0;        // of its collectives, for later ranks
};

struct SimulatedStep {               // the result of a simulation
  Nanoseconds duration = 0;          // until all ranks have finished
  std::vector<SimulatedRank> ranks;  // a single one if all are identical
  bool alike = true;  // false: more_microbatches cannot be extrapolated; plan each microbatch
};

// Executes a step in virtual time, from an idle machine until everything has ended (the
// host reads the loss then, so steps do not overlap). Makes no decisions of its own: executes the
// schedule's actions in order, as the engine's executor does.
//
// Errors  RuntimeFault if something waits for an event that never happens.
[[nodiscard]] SimulatedStep simulate(const PricedStep& step, const SimulationOptions& options = {});

}  // namespace shardlens::sim
