#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/resolved_plan.h"
#include "core/plan/workload.h"
#include "core/schedule/planned.h"
#include "sim/engine/machine.h"
#include "sim/engine/step_costs.h"

namespace shardlens::sim {

// kAhead: the host issues and goes on, as on CUDA. kCompute: the host computes itself, as in CPU
// runs: what compute waits for, the host waits for, and each communicator is one thread.
enum class HostMode : uint8_t { kAhead, kCompute };

struct SimulationOptions {
  HostMode host = HostMode::kAhead;
  // The training loop reads the loss before it calls backward; otherwise only at the end of the
  // step.
  bool waits_for_loss = false;
  bool keep_times = true;  // false: figures alone
  // Microbatches of the step beyond the four planned, like its middle ones: see alike.h. Takes
  // keep_times and ranks that are alike.
  int64_t more_microbatches = 0;
  // How much longer each rank computes; empty: all ranks are alike, and one is simulated.
  std::vector<double> rank_slowdown = {};
};

struct SimulatedRank {
  StepFigures figures;
  std::vector<ItemTimes> items;  // by index into PlannedStep::order; empty without keep_times
};

struct SimulatedStep {
  Nanoseconds duration = 0;          // until all ranks have nothing left to do
  std::vector<SimulatedRank> ranks;  // one, if all are alike
  bool alike = true;  // false: more_microbatches were asked for, but must be planned one by one
};

// Executes a planned step in virtual time, from an idle machine until everything has ended (the
// host reads the loss then, so that steps do not overlap). Decides nothing: the schedule's actions
// are obeyed in order, as the engine's executor does.
//
// Errors  RuntimeFault if something waits for what never happens.
[[nodiscard]] SimulatedStep simulate(const plan::Workload& workload,
                                     const plan::ResolvedPlan& plan,
                                     const schedule::PlannedStep& step,
                                     const StepCosts& costs,
                                     const SimulationOptions& options = {});

}  // namespace shardlens::sim
