#include "sim/calibrate/replay.h"

#include <algorithm>
#include <vector>

#include "profiler/analysis/recovered_plan.h"
#include "profiler/trace/run.h"
#include "sim/calibrate/recorded_tree.h"

namespace shardlens::sim {

namespace {

trace::Run open_run(const std::filesystem::path& path) {
  trace::Run run = trace::Run::open(path);
  if (run.planned) {
    return run;
  }
  trace::ReadOptions with_shapes;
  with_shapes.keep_args = true;
  return trace::Run::open(path, with_shapes);
}

Observation observe_any(const trace::Run& run) {
  // A capture whose plan cannot be read says so in observe().
  return run.planned || unreadable_plan(run) != nullptr
             ? observe(run)
             : observe(run, analysis::recover_plan(run.traces.front()));
}

}  // namespace

Observation open_observation(const std::filesystem::path& path) {
  return observe_any(open_run(path));
}

Replay Replay::open(const std::filesystem::path& path) {
  const trace::Run run = open_run(path);
  Replay out = of(run);
  // A capture leaves its model's config; a PyTorch trace is rewrapped by its units.
  if (run.planned && std::filesystem::exists(path / "config.json")) {
    out.config = plan::load_model_config(path / "config.json");
  }
  return out;
}

Replay Replay::of(const trace::Run& run) {
  Replay out;
  out.observation = observe_any(run);
  out.calibration = calibrate(std::span(&out.observation, 1));
  return out;
}

plan::Workload Replay::workload(const plan::ResolvedPlan& plan) const {
  const plan::Workload& recorded = observation.workload;
  return config ? plan::step_workload(*config, plan, recorded.batch, recorded.seq)
                : rewrapped(recorded, observation.plan, plan);
}

RunSettings Replay::settings(const CalibratedTarget& machine) const {
  RunSettings out;
  out.accumulate = observation.accumulate;
  out.sync_every_microbatch = observation.sync_every_microbatch;
  out.simulation.host = machine.host();
  return out;
}

Baseline Replay::baseline(const CalibratedTarget& machine) const {
  std::vector<Nanoseconds> steps;
  for (const ObservedStep& step : observation.steps) {
    steps.push_back(step.duration);
  }
  std::sort(steps.begin(), steps.end());
  RunSettings figures = settings(machine);
  figures.simulation.keep_times = false;
  figures.list_alive = false;
  return {steps[steps.size() / 2],
          predict(observation.workload, observation.plan, machine.target(), figures).step.duration};
}

}  // namespace shardlens::sim
