#include "sim/scenario/uncertainty.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <numbers>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "profiler/check/statistics.h"
#include "sim/calibrate/calibration.h"
#include "sim/engine/priced_step.h"
#include "sim/engine/simulator.h"

namespace shardlens::sim {
namespace {

constexpr size_t kMostGroups = 8;
// Standard error of a CPU's compute, which another plan's buffers and waits make a little faster or
// slower.
constexpr double kOfCompute = 0.01;

// The observation without the steps of these numbers, and without their collectives where the
// steps' windows are known.
Observation without(const Observation& of, const std::set<int64_t>& numbers) {
  Observation out = of;
  StepWindows windows;
  std::erase_if(out.steps, [&](const ObservedStep& step) {
    if (!numbers.contains(step.number)) {
      return false;
    }
    windows.add(step);
    return true;
  });
  std::erase_if(out.collectives,
                [&windows](const ObservedCollective& each) { return windows.contain(each); });
  return out;
}

// Independent errors add as their squares.
double together(std::initializer_list<double> errors) {
  double squares = 0;
  for (const double each : errors) {
    squares += each * each;
  }
  return std::sqrt(squares);
}

// Half the 90 % interval of the median of values. From five values on it ends at two of them, so
// that a few slow steps do not matter. Of fewer values: the standard error 1.25 · deviation / root
// of n (of a normal distribution), with Student's quantile.
double noise_of_median(std::vector<double> values) {
  constexpr double kTail = 0.05;
  const size_t n = values.size();
  if (n < 2) {
    return 0;
  }
  const auto count = static_cast<double>(n);
  if (n < Uncertainty::kEnoughSteps) {
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
    double squares = 0;
    for (const double value : values) {
      squares += (value - mean) * (value - mean);
    }
    return check::t_quantile(kTail, count - 1) * 1.25 * std::sqrt(squares / (count - 1) / count);
  }
  std::sort(values.begin(), values.end());
  const size_t outside = check::outside_median_interval(n, kTail);
  return (values[n - 1 - outside] - values[outside]) / 2;
}

// Ranks of one step are not independent.
double noise_of(const Observation& of) {
  std::map<int64_t, std::vector<double>> by_number;
  for (const ObservedStep& step : of.steps) {
    by_number[step.number].push_back(static_cast<double>(step.duration));
  }
  std::vector<double> steps;
  for (auto& [number, durations] : by_number) {
    steps.push_back(check::midmean(std::move(durations)));
  }
  return noise_of_median(std::move(steps));
}

// nullopt: the machine was calibrated without some work of the scenario.
std::optional<double> step_on(const Scenario& scenario,
                              const std::shared_ptr<const TargetMachine>& machine) {
  Scenario on = scenario;
  on.machine = machine;
  try {
    return static_cast<double>(evaluate(on).step.duration);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

// The predicted step on a spec that differs from the scenario's only in constants of time, so that
// what runs, its order and its memory are the same.
double step_with(const Scenario& scenario,
                 const Prediction& prediction,
                 const TargetMachine& machine) {
  PricedStep step = prediction.priced;
  step.costs = std::make_shared<const StepCosts>(costs_of(step, *machine.target().costs));
  SimulationOptions options;
  options.host = prediction.host;
  options.waits_for_loss = scenario.waits_for_loss;
  options.keep_times = false;
  options.rank_slowdown = scenario.rank_slowdown;
  return static_cast<double>(simulate(step, options).duration + machine.target().outside);
}

// The jackknife's standard error of values that were each computed without one group.
double jackknife(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  double mean = 0, squares = 0;
  for (const double value : values) {
    mean += value / count;
  }
  for (const double value : values) {
    squares += (value - mean) * (value - mean);
  }
  return std::sqrt((count - 1) / count * squares);
}

// Time that is in another part of the step than before. The parts add up to the step.
double moved(const StepFigures& before, const StepFigures& after) {
  const auto change = [](Nanoseconds a, Nanoseconds b) {
    return std::abs(static_cast<double>(a - b));
  };
  return change(before.compute, after.compute) + change(before.exposed_comm, after.exposed_comm) +
         change(before.exposed_copy, after.exposed_copy) + change(before.idle, after.idle);
}

// The model's standard error for a change, in parts of moved().
double share_off(const plan::ResolvedPlan& own, const plan::ResolvedPlan& then, bool on_cpu) {
  const bool one_unit = then.units.size() == 1 && own.units.size() > 1 &&
                        then.units.front().api == plan::Api::kFullyShard;
  return one_unit && on_cpu                                      ? kOfMovedToOneUnit
         : own.checkpointed_modules != then.checkpointed_modules ? kOfMovedByCheckpoints
                                                                 : kOfMoved;
}

PredictedInterval around_step(Nanoseconds step, double half) {
  const auto middle = static_cast<double>(step);
  return {std::llround(middle / (1 + half / middle)), std::llround(middle + half)};
}

// The spec with constants of one kind at an end of their range. `range`: its end, as a logarithm of
// time; negative: faster.
using Change = void (*)(HardwareSpec& spec, double range);

void change_products(HardwareSpec& spec, double range) {
  spec.software.matrix_rate *= std::exp(-range);
}
void change_attention(HardwareSpec& spec, double range) {
  spec.software.attention_rate *= std::exp(-range);
}
void change_clock(HardwareSpec& spec, double range) {
  change_products(spec, range);
  change_attention(spec, range);
}
// Not the passes of a stack: compiled kernels have none.
void change_memory(HardwareSpec& spec, double range) {
  spec.gpu.memory_gbps *= std::exp(-range);
}
void change_collectives(HardwareSpec& spec, double range) {
  spec.software.collective_rate *= std::exp(-range);
}
void change_host(HardwareSpec& spec, double range) {
  for (double* us : {&spec.operator_us, &spec.action_us, &spec.software.unit_us}) {
    *us *= std::exp(range);
  }
}
void change_step(HardwareSpec& spec, double us) {
  spec.software.step_us = std::max(0.0, spec.software.step_us + us);
}

// Half the 90 % interval of a class's line, as a logarithm. The error of shapes left out is a mean
// of absolute values, 0.8 of a standard error. A class of too few shapes has the mean of the
// others.
double off_of(const KernelClass& of, const Calibration& all) {
  constexpr double kStandardErrors = 1.2533;
  double errors = of.left_out.value_or(0), shares = 1;
  if (!of.left_out) {
    errors = shares = 0;
    for (const KernelClass& each : all.classes) {
      errors += each.share * each.left_out.value_or(0);
      shares += each.left_out ? each.share : 0;
    }
  }
  return shares > 0 ? std::log1p(kQuantile90 * kStandardErrors * errors / shares) : 0;
}

// All lines of classes at one end. `side`: -1 faster, 1 slower.
void change_lines(Calibration& calibration, int side) {
  std::vector<double> factors;
  for (const KernelClass& each : calibration.classes) {
    factors.push_back(std::exp(side * off_of(each, calibration)));
  }
  for (size_t i = 0; i < factors.size(); ++i) {
    calibration.classes[i].us *= factors[i];
    calibration.classes[i].us_per_unit *= factors[i];
  }
}

// The most host time of communication that the program issues itself, of kinds that were not
// measured: DTensor does more around a collective than FSDP, whose calls give their likely time.
void slow_unmeasured_calls(Calibration& calibration) {
  const CalibratedCostModel model(calibration);
  std::array<Nanoseconds, kCollectiveKindCount> likely{};
  for (size_t kind = 0; kind < likely.size(); ++kind) {
    plan::Communication call;
    call.kind = static_cast<CollectiveKind>(kind);
    likely[kind] = model.issue_communication(call);
  }
  for (size_t kind = 0; kind < likely.size(); ++kind) {
    if (!calibration.communication[kind]) {
      calibration.communication[kind].emplace(Calibration::Communication{}).us =
          kMostOfCalls * static_cast<double>(likely[kind]) * 1e-3;
    }
  }
}

// `own`: the step that changes.
PredictedInterval around_change(Nanoseconds change, double half, Nanoseconds own) {
  const auto middle = static_cast<double>(change);
  return {std::max(std::llround(middle - half), static_cast<long long>(-own)),
          std::llround(middle + half)};
}

}  // namespace

Uncertainty::Uncertainty(std::shared_ptr<const RecordedRun> run)
    : run_(std::move(run)), own_(evaluate(own_scenario(run_))) {
  const Observation& of = run_->observation();
  for (const double off : {-kOffBeyond, kOffBeyond}) {
    bounds_.push_back(
        std::make_shared<const TargetMachine>(*run_->machine()->calibration(), "", off));
  }
  noise_ = noise_of(of);
  if (of.one_pass && !of.durations.empty()) {  // the pass says nothing about the other steps
    const auto [least, most] = std::ranges::minmax(of.durations);
    noise_ = std::max(noise_, static_cast<double>(most - least));
    pass_ = static_cast<double>(most - least) /
            static_cast<double>(std::max<Nanoseconds>(run_->baseline().measured, 1));
  }
  std::set<int64_t> all;
  for (const ObservedStep& step : of.steps) {
    all.insert(step.number);
  }
  steps_ = all.size();
  const size_t groups = std::min(all.size(), kMostGroups);
  if (groups < 2) {
    return;
  }
  std::vector<std::set<int64_t>> left_out(groups);
  size_t at = 0;
  for (const int64_t number : all) {
    left_out[at++ * groups / all.size()].insert(number);
  }
  const Scenario own = own_scenario(run_);
  for (const std::set<int64_t>& numbers : left_out) {
    const Observation rest = without(of, numbers);
    auto machine = std::make_shared<const TargetMachine>(calibrate(std::span(&rest, 1)));
    if (const auto step = step_on(own, machine)) {
      own_steps_.push_back(*step);
      machines_.push_back(std::move(machine));
    }
  }
}

Uncertainty::Uncertainty(std::shared_ptr<const TargetMachine> machine)
    : machine_(std::move(machine)) {
  if (machine_->calibration() != nullptr) {
    const auto lines = [this](int side) {
      return machine_->changed([side](Calibration& of) { change_lines(of, side); }, nullptr);
    };
    ends_.push_back({lines(-1), lines(1)});
    ends_.push_back({machine_->changed(nullptr, nullptr, -kOffBeyond),
                     machine_->changed(nullptr, nullptr, kOffBeyond)});
    ends_.push_back({nullptr, machine_->changed(slow_unmeasured_calls, nullptr)});
    remaining_ = {kQuantile90 * kOfCalibrated, kQuantile90 * kOfCalibrated};
  }
  if (!machine_->spec()) {
    return;
  }
  const ConstantRanges& ranges = machine_->spec()->ranges;
  if (machine_->calibration() == nullptr) {
    remaining_ = ranges.remaining;
  }
  const std::pair<ConstantRange, Change> kinds[] = {
      {ranges.products, change_products},
      {ranges.attention, change_attention},
      {ranges.clock, change_clock},
      {ranges.memory, change_memory},
      {ranges.collectives, change_collectives},
      {ranges.host, change_host},
      {{ranges.step_us, ranges.step_us}, change_step}};
  for (const auto& [range, change] : kinds) {
    const auto at = [this, change = change](double end) {
      return machine_->changed(nullptr, [&](HardwareSpec& spec) { change(spec, end); });
    };
    ends_.push_back({range.faster > 0 ? at(-range.faster) : nullptr,
                     range.slower > 0 ? at(range.slower) : nullptr});
  }
}

// Logarithms, because each kind of constants is a factor on its part of the step.
void Uncertainty::add_of_machine(const Scenario& scenario, Prediction& prediction) const {
  const auto step = static_cast<double>(prediction.step.duration);
  // The part of the step that step_with() leaves out: communication outside of the plan.
  const double rest =
      machine_->calibration() == nullptr ? 0 : step - step_with(scenario, prediction, *machine_);
  ConstantRange remaining = remaining_;
  if (machine_->spec() && machine_->calibration() == nullptr) {
    const ConstantRanges& ranges = machine_->spec()->ranges;
    if (has_experts(*prediction.priced.workload)) {
      remaining = together(remaining, ranges.experts);
    }
    if (prediction.priced.plan->mesh.size(mesh::kContext) > 1) {
      remaining = together(remaining, ranges.context);
    }
  }
  double below = remaining.faster * remaining.faster, above = remaining.slower * remaining.slower;
  const auto add = [&](const std::shared_ptr<const TargetMachine>& machine) {
    const double end = machine == nullptr ? step : step_with(scenario, prediction, *machine) + rest;
    const double change = end > 0 ? std::log(end / step) : 0;
    (change < 0 ? below : above) += change * change;
  };
  for (const Ends& each : ends_) {
    add(each.faster);
    add(each.slower);
  }
  if (machine_->has_ratios() && prediction.baseline) {  // what the model is off on the run itself
    const double off = kQuantile90 * std::log1p(std::abs(prediction.baseline->error()));
    below += off * off;
    above += off * off;
  }
  prediction.interval = PredictedInterval{std::llround(step * std::exp(-std::sqrt(below))),
                                          std::llround(step * std::exp(std::sqrt(above)))};
}

// How far the step is from the steps with all unmeasured work at its lower and upper bounds.
double Uncertainty::extrapolation(const Scenario& scenario, Nanoseconds step) const {
  double out = 0;
  for (const auto& machine : bounds_) {
    if (const auto bound = step_on(scenario, machine)) {
      out = std::max(out, std::abs(*bound - static_cast<double>(step)));
    }
  }
  return out;
}

void Uncertainty::add_to(const Scenario& scenario, Prediction& prediction) const {
  if (machine_ != nullptr && scenario.machine == machine_) {
    return add_of_machine(scenario, prediction);
  }
  if (run_ == nullptr || scenario.machine != run_->machine()) {
    return;
  }
  std::vector<double> steps, changes;
  for (size_t i = 0; i < machines_.size(); ++i) {
    if (const auto step = step_on(scenario, machines_[i])) {
      steps.push_back(*step);
      changes.push_back(*step - own_steps_[i]);
    }
  }
  const double student =
      steps.size() < 2 ? 0 : check::t_quantile(0.05, static_cast<double>(steps.size() - 1));
  const auto sampled = [student](const std::vector<double>& values) {
    return values.size() < 2 ? 0 : student * jackknife(values);
  };
  const Baseline& baseline = run_->baseline();
  const double off = std::abs(static_cast<double>(baseline.simulated - baseline.measured));
  const bool on_cpu = run_->machine()->host() == HostMode::kCompute;
  const double elsewhere = moved(own_.figures, prediction.figures);
  const double compute = on_cpu ? kOfCompute * static_cast<double>(prediction.figures.compute) : 0;
  const double model = together(
      {share_off(*own_.priced.plan, *prediction.priced.plan, on_cpu) * elsewhere, compute});
  const Nanoseconds step = prediction.step.duration, change = step - own_.step.duration;
  const double beyond = prediction.extrapolated.empty() ? 0 : extrapolation(scenario, step);
  prediction.interval = around_step(
      step, together({sampled(steps), noise_, beyond, kQuantile90 * together({model, off})}));
  plan::Plan plan = scenario.plan;
  plan.source = run_->observation().plan.plan.source;  // it may be read from another file
  const double of_pass = pass_ * std::abs(static_cast<double>(change));
  prediction.change_interval =
      change == 0 && plan == run_->observation().plan.plan
          ? PredictedInterval{}
          : around_change(
                change,
                together({sampled(changes), of_pass, beyond,
                          kQuantile90 * together({model, std::abs(baseline.error()) * elsewhere})}),
                own_.step.duration);
}

bool has_experts(const plan::Workload& workload) {
  return std::ranges::any_of(workload.operators, [](const plan::Operator& op) {
    return op.name.find("grouped_mm") != std::string::npos;
  });
}

std::optional<ThroughputInterval> tokens_interval(const Prediction& prediction) {
  if (!prediction.interval || prediction.tokens_per_s == 0 || prediction.interval->low == 0) {
    return std::nullopt;
  }
  const double tokens = prediction.tokens_per_s * static_cast<double>(prediction.step.duration);
  return ThroughputInterval{tokens / static_cast<double>(prediction.interval->high),
                            tokens / static_cast<double>(prediction.interval->low)};
}

}  // namespace shardlens::sim
