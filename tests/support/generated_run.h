#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiler/trace/run.h"

namespace shardlens::test {

// A sharded training run of a small model on GPUs as Kineto would record it: one stream for compute
// and one for each kind of communication, collectives that begin on each rank separately and end on
// all at once, and noise as in real runs. The fields define the run, so that the differences of two
// runs are known.
struct GeneratedRun {
  int ranks = 2, layers = 4, steps = 20;
  uint64_t seed = 1;
  // Standard deviations as shares of the time: of a run, of a step (half of which carries over to
  // the next one), of an operator, of a collective; and the share of steps that take half as long
  // again.
  double run_noise = 0.003, step_noise = 0.01, operator_noise = 0.02, collective_noise = 0.05;
  double hiccups = 0.02;
  // Standard deviation between sessions, and the session of this run: runs of one session are
  // slower or faster together.
  double session_noise = 0;
  uint64_t session = 0;
  int warmup = 0;  // slow steps at the beginning
  // Nanoseconds.
  double forward = 1.0e6, backward = 2.0e6, all_gather = 0.6e6, reduce_scatter = 0.8e6,
         optimizer = 1.0e6;
  double more_compute = 0;          // of a step, in all of its forwards together
  double more_exposed = 0;          // of the step's last reduce-scatter, which nothing can hide
  double hidden_all_gather = 1;     // factor of the all-gathers for backward
  int slow_step = -1;               // takes ten times as long
  std::vector<int> not_prefetched;  // layers
  bool late_reductions = false;     // as frozen views make them
  bool reductions_beside_gathers = false;  // one stream for all collectives
  int64_t layer_bytes = 4096;
  // The layers' messages vary from step to step, up to this share more, as with a mixture of
  // experts or sequences of any length.
  double varying_bytes = 0;
  // Of PyTorch's allocator on "cuda:0", if a peak is given: between steps, and at most in a step.
  Bytes memory_kept = 0, memory_peak = 0;
  Nanoseconds overhead = 0;  // how long the profiler itself runs in each step
  std::string layer_name = "layers.{}";

  [[nodiscard]] trace::Run run() const;
};

}  // namespace shardlens::test
