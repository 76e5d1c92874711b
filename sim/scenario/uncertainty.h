#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "sim/scenario/scenario.h"

namespace shardlens::sim {

// How far predictions may be off: 90 % intervals of a predicted step and, for a recorded run, of
// its change against the run's own plan.
//
// [Note: Intervals] Independent parts, added as squares. On a spec each kind of its constants is a
// part: the step is predicted again with them at both ends of their range (ConstantRanges), and
// what the model is off with the right constants is one more, larger for work that no stack was
// fitted to. The two sides are added apart. On a
// calibrated machine that is no recorded run's own the kinds are: the lines of classes, which price
// shapes that were not measured, all off by the error of shapes that were left out of them; work
// beyond the measured sizes (kOffBeyond); the calls of a program's own communication of kinds that
// did not run (up to kMostOfCalls); and the spec that gives what was not measured. The model
// is off by kOfCalibrated, and with ratios of a run's model also by its error on the run's own
// plan. For a recorded run on its own machine, of both a step and a change:
// - The machine was calibrated on few steps. It is calibrated again without each of them (of more
//   than eight steps: without each of eight groups of them); the predictions' spread is the
//   jackknife's standard error, with Student's quantile. For a change both plans are predicted from
//   the same steps, so what their steps have in common is not in the spread of their difference.
//   Of a single pass, whose spread is not known: it may have taken as much more or less time as the
//   recorded steps differ, and both plans with it.
// - Work of sizes that were not measured is priced by extrapolation: the step is predicted again
//   with all such work at the lower and at the upper bound of its time (kOffBeyond).
// - The model is not exact. Its standard error is a share of the time that the change moves between
//   the parts of a step (kOfMoved and the others), and on a CPU a share of the compute.
// - The baseline's error: for a step all of it; for a change its share of the step, of the moved
//   time.
// Of a step only: who measures it again has the noise of that run, how far the median of as many
// steps as were recorded is from the true one. A run of one step shows no noise. The interval of a
// change is that of the expected change: of both plans' steps alternately in one run. Two single
// runs differ by their own noise in addition.
// A step takes no negative time, so half the interval is taken off as a factor: it starts at
// step / (1 + half / step). A change takes off at most the step.
//
// Ownership   shares the run.
// Threads     immutable.
// Complexity  add_to() evaluates the scenario once for each step or group.
class Uncertainty {
 public:
  explicit Uncertainty(std::shared_ptr<const RecordedRun> run);
  // For predictions on a machine that is no recorded run's own.
  explicit Uncertainty(std::shared_ptr<const TargetMachine> machine);

  // Sets the intervals of `prediction`, which is evaluate(scenario). `scenario` must be a change of
  // own_scenario(run) on its machine, or on the given machine; for one on another machine nothing
  // is set.
  void add_to(const Scenario& scenario, Prediction& prediction) const;

  // Recorded steps. With fewer than kEnoughSteps their noise is hardly known.
  [[nodiscard]] size_t steps() const { return steps_; }
  static constexpr size_t kEnoughSteps = 5;

 private:
  [[nodiscard]] double extrapolation(const Scenario& scenario, Nanoseconds step) const;
  void add_of_machine(const Scenario& scenario, Prediction& prediction) const;

  std::shared_ptr<const TargetMachine> machine_;
  // The machine with one kind of constants at the ends of its range; null: not in that direction.
  struct Ends {
    std::shared_ptr<const TargetMachine> faster, slower;
  };
  std::vector<Ends> ends_;
  ConstantRange remaining_;  // of a step whose constants are right

  std::shared_ptr<const RecordedRun> run_;
  Prediction own_;
  std::vector<std::shared_ptr<const TargetMachine>> machines_;  // without a step or group each
  std::vector<double> own_steps_;                               // on these machines, ns
  // All sizes that were not measured take as little and as much time as is likely.
  std::vector<std::shared_ptr<const TargetMachine>> bounds_;
  size_t steps_ = 0;
  double noise_ = 0;  // half a 90 % interval of their median, ns
  double pass_ = 0;   // range of all recorded steps by the pass that was measured; 0: steps were
};

// Whether routed experts run.
[[nodiscard]] bool has_experts(const plan::Workload& workload);

// The interval of a throughput, from that of the step; nullopt: the step has none, or its tokens
// are not known.
struct ThroughputInterval {
  double low = 0, high = 0;
};
[[nodiscard]] std::optional<ThroughputInterval> tokens_interval(const Prediction& prediction);

// Standard errors of the model for a change, in parts of the time that it moves between compute,
// exposed communication, exposed copies and idle time: the root mean square of predicted less
// measured changes, less the noise of measuring them, by that of the predicted changes.
// Source  bench/RESULTS.md: the ten FSDP2 programs, 29 changes of resharding, units and replicas,
// and ten to one unit on a CPU, whose large buffers come from the kernel; other checkpoints of
// seven recordings.
inline constexpr double kOfMoved = 0.13, kOfMovedToOneUnit = 0.62, kOfMovedByCheckpoints = 0.40;

// The standard error of a step on a calibrated machine, as a share of it: the root mean square of
// the errors of twelve plans predicted from another plan's captures, with what the machine's speed
// differs from run to run. No run of a GPU is in it.
// Source  bench/RESULTS.md, bench/predicted_plans.py: -1.0 to +10.8 %.
inline constexpr double kOfCalibrated = 0.034;

// The host's time of a program's own communication, by that of FSDP's calls: at most.
// Source  tests/tools/other_degrees.py, DTensor's tensor parallelism over Gloo by a run of FSDP2:
// 2.1 with sequence parallelism, 3.1 without.
inline constexpr double kMostOfCalls = 3;

// Quantiles of the normal distribution: of the two-sided 90 % interval, and the one-sided 99 %
// bound.
inline constexpr double kQuantile90 = 1.6449, kQuantile99 = 2.3263;

}  // namespace shardlens::sim
