#include "sim/scenario/recorded_run.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/median.h"
#include "core/model/step_workload.h"
#include "core/workload/host_launches.h"
#include "profiler/analysis/timeline/device_choice.h"
#include "profiler/trace/parallel_axes.h"
#include "sim/calibrate/calibration.h"
#include "sim/calibrate/captured_steps.h"
#include "sim/calibrate/changes/recorded_batch.h"
#include "sim/calibrate/changes/recorded_checkpoints.h"
#include "sim/calibrate/recorded_tree.h"
#include "sim/calibrate/replicated_observation.h"
#include "sim/calibrate/uneven_waits.h"
#include "sim/scenario/scenario.h"

namespace shardlens::sim {

namespace {

// DDP's buckets are recovered from the trace, also where the plan is known.
bool has_program(const trace::Run& run) {
  return run.planned && run.planned->recorded && !run.planned->workload.order.empty();
}

// A plan has every axis but that of a pipeline.
void require_predictable(const analysis::AnalyzedRun& analyzed) {
  const trace::Run& run = analyzed.run();
  const trace::Trace& first = run.traces.front();
  const std::vector<trace::ModelAxis> axes = trace::model_axes(first.metadata.groups);
  const std::string because = run.plan_problem.empty() ? "" : "; " + run.plan_problem;
  if (std::ranges::find(axes, trace::ParallelAxis::kPipeline, &trace::ModelAxis::axis) !=
      axes.end()) {
    throw InputError(
        run.source,
        fmt::format("the run has {}: its stages are in no plan, so steps of other plans cannot be "
                    "predicted{}; `shardlens analyze` shows where the time of this one went",
                    trace::words_of(axes), because));
  }
  if (const std::string& evidence = analyzed.timeline(0).missing_kernels; !evidence.empty()) {
    throw InputError(run.source,
                     fmt::format("the trace has no kernels, although {}: no time of the device is "
                                 "known; record with activities=[ProfilerActivity.CPU, "
                                 "ProfilerActivity.{}]",
                                 evidence, analysis::activity_of_kernels(first)));
  }
  const analysis::Timeline& timeline = analyzed.timeline(0);
  const GraphLaunches graphs(first, timeline);
  if (timeline.captured && timeline.fsdp.source == analysis::FsdpSource::kNone &&
      timeline.ddp.passes.empty() && !timeline.rewritten &&
      std::ranges::all_of(timeline.steps,
                          [&](const analysis::Step& step) { return graphs.any_in(step); })) {
    throw InputError(run.source,
                     "every step of the trace replays CUDA graphs, which show no operators: record "
                     "a step before the graphs are captured too (a smaller warmup of "
                     "shardlens.record), and its operators are predicted with the graphs' time");
  }
}

Observation observe_known(const analysis::AnalyzedRun& analyzed) {
  const trace::Run& run = analyzed.run();
  // For a capture whose plan cannot be read, observe() throws the reason.
  if ((run.planned && !run.planned->recorded) || unreadable_plan(run) != nullptr) {
    return observe(analyzed);
  }
  return has_program(run) ? observe_recorded(analyzed) : observe_recovered(analyzed);
}

// The name of run.json's `framework`; "": there is none.
std::string framework_of(const std::string& environment) {
  const auto about = nlohmann::json::parse(environment, nullptr, false);
  const auto found = about.is_object() ? about.find("framework") : about.end();
  return found != about.end() && found->is_object() && found->contains("name") &&
                 found->at("name").is_string()
             ? found->at("name").get<std::string>()
             : std::string();
}

Observation observe_any(const analysis::AnalyzedRun& run) {
  require_predictable(run);
  Observation out = observe_known(run);
  out.framework = framework_of(run.run().environment);
  for (const std::string& note : trace::notes_of_run(run.run().environment)) {
    trace::add_diagnostic(out.diagnostics, trace::Severity::kNote, "shardlens.record: " + note);
  }
  return out;
}

// What a CUDA graph replays, the host takes no part in.
void require_capturable(const plan::ResolvedPlan& plan, const std::string& source) {
  const auto refuse = [&source](std::string_view why) {
    throw InputError(source, fmt::format("its steps are replayed as CUDA graphs, which {}; record "
                                         "the program without graphs to predict such plans",
                                         why));
  };
  if (plan.plan.dialect == plan::Dialect::kFsdp1 && plan.plan.limit_all_gathers) {
    refuse("limit_all_gathers does not permit: the host waits for the device");
  }
  if (std::ranges::any_of(plan.units, &plan::Unit::cpu_offload)) {
    refuse("cpu_offload does not permit: the host computes");
  }
}

Nanoseconds median_duration(const std::vector<ObservedStep>& of) {
  std::vector<Nanoseconds> steps;
  for (const ObservedStep& step : of) {
    steps.push_back(step.duration);
  }
  return median(steps);
}

}  // namespace

std::string Baseline::measured_text(const std::string& run) const {
  int64_t all = 0;
  std::string reasons;
  for (const StepsLeftOut& each : left_out) {
    all += each.steps;
    reasons += (reasons.empty() ? "" : "; ") + each.reason;
  }
  const std::string rest = all == 0 ? "" : fmt::format(", {} left out: {}", all, reasons);
  const char* why = all == 0 ? "which has no steps" : "because no step is like the plan's";
  return one_pass ? fmt::format("one pass of {}, {}{}", run, why, rest)
                  : fmt::format("{} step{} of {}{}", steps, steps == 1 ? "" : "s", run, rest);
}

std::string Baseline::doubt_text() const {
  constexpr double kFarOff = 0.2;
  return std::abs(error()) <= kFarOff
             ? ""
             : fmt::format(
                   "the run's own plan is more than {:.0f} % off, so what other plans change may "
                   "be "
                   "too; shardlens analyze shows where the run's time went",
                   kFarOff * 100);
}

analysis::AnalyzedRun RecordedRun::read(std::span<const std::filesystem::path> paths,
                                        trace::Progress* progress) {
  // A capture by Shardlens; for all other runs the operators are read from the traces.
  const auto has_workload = [](const std::filesystem::path& path) {
    std::error_code none;
    return std::filesystem::exists(
        (std::filesystem::is_directory(path, none) ? path : path.parent_path()) / "workload.json",
        none);
  };
  trace::ReadOptions options;
  options.progress = progress;
  options.keep_args = !std::any_of(paths.begin(), paths.end(), has_workload);
  analysis::AnalyzedRun run = analysis::AnalyzedRun::open(paths, options);
  if (options.keep_args || !needs_arguments(run.run())) {
    return run;
  }
  options.keep_args = true;  // there is a workload.json, but not the rest of a capture
  return analysis::AnalyzedRun::open(paths, options);
}

Observation open_observation(const std::filesystem::path& path) {
  return observe_any(RecordedRun::read(std::span(&path, 1)));
}

bool RecordedRun::needs_arguments(const trace::Run& run) {
  return (!run.planned || run.planned->recorded) && unreadable_plan(run) == nullptr;
}

std::shared_ptr<const RecordedRun> RecordedRun::open(std::span<const std::filesystem::path> paths,
                                                     trace::Progress* progress) {
  return of(read(paths, progress));
}

std::shared_ptr<const RecordedRun> RecordedRun::of(const trace::Run& run) {
  return of(analysis::AnalyzedRun(run));
}

std::shared_ptr<const RecordedRun> RecordedRun::of(const analysis::AnalyzedRun& run) {
  return with_baseline(std::shared_ptr<RecordedRun>(new RecordedRun(observe_any(run))));
}

std::shared_ptr<const RecordedRun> RecordedRun::open_two(const std::filesystem::path& first,
                                                         const std::filesystem::path& second) {
  return with_baseline(std::shared_ptr<RecordedRun>(
      new RecordedRun(open_observation(first), open_observation(second))));
}

std::shared_ptr<const RecordedRun> RecordedRun::with_baseline(std::shared_ptr<RecordedRun> run) {
  // As every other plan of the run, so that the own plan has one prediction.
  const Prediction own = evaluate(own_scenario(run));
  run->baseline_.simulated = own.step.duration;
  run->own_figures_ = own.figures;
  return run;
}

RecordedRun::RecordedRun(Observation observation, const std::optional<Observation>& other)
    : observation_(std::move(observation)) {
  if (other) {
    other_ = other_sequence(observation_, *other);
    machine_ = std::make_shared<const TargetMachine>(calibrate(std::array{observation_, *other}));
  } else {
    machine_ = std::make_shared<const TargetMachine>(calibrate(std::span(&observation_, 1)));
  }
  baseline_.steps = static_cast<int64_t>(observation_.steps.size());
  baseline_.left_out = observation_.left_out;
  baseline_.one_pass = observation_.one_pass;
  baseline_.measured = median_duration(observation_.steps);
  if (observation_.captured) {
    baseline_.steps = static_cast<int64_t>(observation_.captured->durations.size());
    baseline_.one_pass = false;
    baseline_.measured = median(observation_.captured->durations);
  }
  for (size_t rank = 0; rank < observation_.of_ranks.size(); ++rank) {
    const std::optional<Nanoseconds> wait = measured_wait(observation_, rank);
    if (!wait) {
      baseline_.waits.clear();
      break;
    }
    baseline_.waits.push_back(*wait);
  }
}

std::vector<RankWorkload> RecordedRun::workloads_of_ranks(
    const plan::ResolvedPlan& plan, const plan::StepSettings& settings) const {
  std::vector<RankWorkload> out;
  for (const RankProgram& each : observation_.of_ranks) {
    out.push_back({adapted(each.workload, plan, settings), each.exchanged});
  }
  return out;
}

plan::Workload RecordedRun::workload(const plan::ResolvedPlan& plan,
                                     const plan::StepSettings& settings) const {
  if (config() != nullptr) {
    return plan::step_workload(*config(), plan, settings);
  }
  const plan::StepSettings& recorded = observation_.settings;
  const auto refuse = [this](const std::string& what) {
    throw InputError(observation_.source,
                     what + "; others need the model, but the run has no config.json");
  };
  if (settings.seq != recorded.seq && (!other_ || !recorded.seq || !settings.seq)) {
    refuse(
        "can only be simulated with the recorded sequence: record the program with another one "
        "too, and give both runs (simulate --workload FIRST --workload SECOND --seq N)");
  }
  std::optional<plan::Workload> longer;
  if (settings.seq != recorded.seq && !observation_.of_ranks.empty()) {
    refuse(
        "has ranks with unequal numbers of rows, so it can only be simulated with the recorded "
        "sequence");
  }
  if (settings.seq != recorded.seq) {
    longer = with_sequence(observation_.workload, *recorded.seq, *other_, *settings.seq);
  }
  const plan::Workload& pass = longer ? *longer : observation_.workload;
  if (settings.batch != recorded.batch) {
    if (!pass.communications.empty() || (recorded.batch == 1 && pass.batch != 1)) {
      refuse(pass.communications.empty()
                 ? "does not say its batch, so it can only be simulated with the recorded one"
                 : "communicates in its forward, so it can only be simulated with the recorded "
                   "batch: record a step with the other one");
    }
  }
  if (settings.optimizer_states() != recorded.optimizer_states()) {
    refuse(fmt::format("can only be simulated with its own optimizer, {}",
                       name_of(recorded.optimizer)));
  }
  const plan::MeshSizes &own = observation_.plan.plan.mesh, &of = plan.plan.mesh;
  if (of.context != own.context || of.tensor != own.tensor || of.expert != own.expert) {
    throw InputError(
        observation_.source,
        fmt::format(
            "its operators are those of its own context {}, tensor {} and expert {}; others "
            "need the model: give its config.json or model.json (simulate --workload RUN "
            "--model MODEL --mesh …)",
            own.context, own.tensor, own.expert));
  }
  require_replicated(observation_, plan);
  return adapted(pass, plan, settings);
}

plan::Workload RecordedRun::adapted(const plan::Workload& pass,
                                    const plan::ResolvedPlan& plan,
                                    const plan::StepSettings& settings) const {
  const plan::Workload checkpointed =
      with_checkpoints(pass, observation_.plan, plan, observation_.source);
  plan::Workload out = rewrapped(checkpointed, observation_.plan, plan);
  const int64_t batch = observation_.settings.batch;
  if (settings.batch != batch) {
    out = with_batch(out, plan, batch, settings.batch);
  }
  if (observation_.captured) {
    require_capturable(plan, observation_.source);
    out.software.cuda_graphs = true;
    plan::set_launches(plan.tree, out);
  }
  return out;
}

}  // namespace shardlens::sim
