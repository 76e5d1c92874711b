#pragma once

#include "profiler/trace/run.h"
#include "sim/engine/priced_step.h"
#include "sim/engine/simulator.h"

namespace shardlens::sim {

struct SimulatedRunOptions {  // of the trace that a simulation writes
  HostMode host = HostMode::kAhead;
  int steps = 1;            // how often the step is repeated
  int first_step = 2;       // number of the first step; the planned step is the third
  std::string device_name;  // name of the GPUs in the trace
};

// Writes a simulated step as the traces that a capture of it would have, one per rank. Ranks that
// were simulated as one get the same events. kAhead: the events that Kineto records of CUDA
// (launches, kernels with correlation, NCCL kernels); kCompute: those that Shardlens records on a
// CPU.
//
// Errors  RuntimeFault if the step was simulated without times.
[[nodiscard]] trace::Run simulated_run(const PricedStep& step,
                                       const SimulatedStep& simulated,
                                       const SimulatedRunOptions& options);

// The trace of one rank.
[[nodiscard]] trace::Trace simulated_trace(const PricedStep& step,
                                           const SimulatedStep& simulated,
                                           int64_t rank,
                                           const SimulatedRunOptions& options);

}  // namespace shardlens::sim
