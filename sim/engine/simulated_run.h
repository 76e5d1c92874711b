#pragma once

#include "core/plan/resolved_plan.h"
#include "core/plan/workload.h"
#include "core/schedule/planned.h"
#include "profiler/trace/run.h"
#include "sim/engine/simulator.h"

namespace shardlens::sim {

struct SimulatedRunOptions {
  HostMode host = HostMode::kAhead;
  int steps = 1;            // the step, again and again
  int first_step = 2;       // number of the first; the planned step is the third
  std::string device_name;  // of the GPUs, for the trace
};

// A simulated step as the traces that a capture of it would leave, one per rank: ranks that are
// alike get the same events. kAhead gives what Kineto records of CUDA (launches, kernels with
// correlation, NCCL kernels), kCompute what Shardlens records on a CPU.
//
// Errors  RuntimeFault if the step was simulated without times.
[[nodiscard]] trace::Run simulated_run(const plan::Workload& workload,
                                       const plan::ResolvedPlan& plan,
                                       const schedule::PlannedStep& step,
                                       const SimulatedStep& simulated,
                                       const SimulatedRunOptions& options);

// One rank of it.
[[nodiscard]] trace::Trace simulated_trace(const plan::Workload& workload,
                                           const plan::ResolvedPlan& plan,
                                           const schedule::PlannedStep& step,
                                           const SimulatedStep& simulated,
                                           int64_t rank,
                                           const SimulatedRunOptions& options);

}  // namespace shardlens::sim
