#include "sim/scenario/uncertainty.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "core/plan/plan.h"
#include "sim/engine/simulated_run.h"
#include "sim/hardware/stacks.h"

namespace shardlens::sim {
namespace {

constexpr int kSteps = 8;

plan::ModelConfig four_blocks() {
  return plan::parse_model_config(
      R"({"model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816,
          "num_hidden_layers": 4, "num_attention_heads": 16, "vocab_size": 4096,
          "max_position_embeddings": 2048})",
      "test");
}

// A machine that is simulated, whose steps have noise: the host is late at the end of each step.
class NoisyMachine {
 public:
  explicit NoisyMachine(int64_t ranks = 4) {
    scenario_.model = std::make_shared<const ScenarioModel>(four_blocks());
    scenario_.plan = plan::strategy_plan("full_shard", scenario_.model->tree());
    scenario_.step = {.batch = 1, .seq = 512};
    scenario_.machine = std::make_shared<const TargetMachine>(load_hardware("4xPCIe"));
    scenario_.world_size = ranks;
    own_ = evaluate(scenario_, {.timeline = true});
  }

  [[nodiscard]] Nanoseconds own_step() const { return own_.step.duration; }

  // How late the host is in each step of a run, in nanoseconds; `noise`: its deviation in parts of
  // the own plan's step.
  std::vector<Nanoseconds> late(double noise) {
    const auto deviation = noise * static_cast<double>(own_step());
    std::normal_distribution<double> draw(4 * deviation, deviation);
    std::vector<Nanoseconds> out(kSteps);
    std::generate(out.begin(), out.end(),
                  [&] { return std::max<Nanoseconds>(0, std::llround(draw(random_))); });
    return out;
  }

  [[nodiscard]] std::shared_ptr<const RecordedRun> run(const std::vector<Nanoseconds>& late) const {
    return recorded([&](trace::Event& event, bool is_step) {
      const auto step = static_cast<size_t>(event.start / own_step());
      for (size_t i = 0; i < std::min<size_t>(step, kSteps); ++i) {
        event.start += late[i];
      }
      event.duration += is_step ? late[step] : 0;
    });
  }

  // A run in which everything in a step takes this many times as long.
  [[nodiscard]] std::shared_ptr<const RecordedRun> scaled_run(
      const std::vector<double>& factors) const {
    return recorded([&](trace::Event& event, bool /*is_step*/) {
      const auto step = static_cast<size_t>(event.start / own_step());
      const auto scaled = [&](Nanoseconds time) {
        return std::llround(factors.at(step) * static_cast<double>(time));
      };
      Nanoseconds begin = 0;
      for (size_t i = 0; i < step; ++i) {
        begin += std::llround(factors[i] * static_cast<double>(own_step()));
      }
      event.start = begin + scaled(event.start % own_step());
      event.duration = scaled(event.duration);
    });
  }

 private:
  template <class Change>
  [[nodiscard]] std::shared_ptr<const RecordedRun> recorded(Change change) const {
    SimulatedRunOptions options;
    options.host = own_.host;
    options.steps = kSteps;
    options.device_name = own_.device;
    trace::Run run = simulated_run(own_.priced, own_.step, options);
    for (trace::Trace& trace : run.traces) {
      for (trace::Event& event : trace.events) {
        change(event, trace.name(event).starts_with("ProfilerStep#"));
      }
    }
    run.planned = trace::PlannedInputs{*own_.priced.plan, *own_.priced.workload, own_.settings, {}};
    return RecordedRun::of(run);
  }

  Scenario scenario_;
  Prediction own_;
  std::mt19937 random_{7};
};

Nanoseconds median(std::vector<Nanoseconds> values) {
  std::sort(values.begin(), values.end());
  return (values[values.size() / 2 - 1] + values[values.size() / 2]) / 2;
}

// How many measured values intervals held.
class HeldShare {
 public:
  void count(const PredictedInterval& interval, Nanoseconds measured) {
    ++all_;
    held_ += interval.low <= measured && measured <= interval.high ? 1 : 0;
  }
  void expect_that_of_a_90_percent_interval() const {
    EXPECT_GE(held_, all_ * 80 / 100) << held_ << " of " << all_;
    EXPECT_LE(held_, all_ * 97 / 100) << held_ << " of " << all_;
  }

 private:
  int all_ = 0, held_ = 0;
};

// Time that is in another of the parts that add up to a step.
double moved(const StepFigures& a, const StepFigures& b) {
  double out = 0;
  for (const auto part : {&StepFigures::compute, &StepFigures::exposed_comm,
                          &StepFigures::exposed_copy, &StepFigures::idle}) {
    out += std::abs(static_cast<double>(a.*part - b.*part));
  }
  return out;
}

// Half the 90 % interval of a change, and what it consists of besides the spread of the steps: the
// model's measured error, and the baseline's, both of the time that moves.
struct ChangeError {
  double half = 0, of_model = 0, change = 0;
};

ChangeError error_of(const std::shared_ptr<const RecordedRun>& run,
                     const std::function<void(Scenario&)>& edit,
                     double of_moved) {
  const Scenario own = own_scenario(run);
  Scenario changed = own;
  edit(changed);
  Prediction then = evaluate(changed);
  Uncertainty(run).add_to(changed, then);
  const Prediction now = evaluate(own);
  const auto change = static_cast<double>(then.step.duration - now.step.duration);
  return {static_cast<double>(then.change_interval->high) - change,
          kQuantile90 * std::hypot(of_moved, run->baseline().error()) *
              moved(now.figures, then.figures),
          change};
}

void prefetch_next(Scenario& scenario) {
  scenario.plan.forward_prefetch = 1;
}

// The host is late in every step under both plans, so the difference of the same step under both
// does not vary, however much the steps do.
TEST(Uncertainty, WhatStepsHaveInCommonIsNotInTheIntervalOfAChange) {
  NoisyMachine machine;
  for (const double noise : {0.0, 0.01, 0.1}) {
    const ChangeError found = error_of(machine.run(machine.late(noise)), prefetch_next, kOfMoved);
    ASSERT_LT(found.change, 0);
    EXPECT_NEAR(found.half, found.of_model, 0.01 * found.of_model) << noise;
  }
}

// A second microbatch runs the operators of the first one again, so in a step in which everything
// takes f times as long it adds f times as much. Four steps of 1 - a and four of 1 + a have the
// mean 1 and the standard error a · sqrt(8 / 7 / 8); Student's quantile of seven degrees of freedom
// is 1.8946. Operators of measured shapes are priced by their mean. Others are by a line through
// interquartile means: without one of these eight, the mean of the middle 3.5 of seven is a / 3.5
// off, twice as far as the mean. So the spread is between once and twice that of a mean.
TEST(Uncertainty, TheIntervalOfAChangeHasTheSpreadOfPairedSteps) {
  const NoisyMachine machine(1);
  const auto twice = [](Scenario& scenario) { scenario.step.accumulate = 2; };
  const auto found = [&](double a) {
    return error_of(machine.scaled_run({1 - a, 1 + a, 1 - a, 1 + a, 1 - a, 1 + a, 1 - a, 1 + a}),
                    twice, kOfMoved);
  };
  const auto spread = [](const ChangeError& of) {
    return std::sqrt(of.half * of.half - of.of_model * of.of_model);
  };
  const ChangeError even = found(0), some = found(0.1), more = found(0.25);
  ASSERT_GT(even.change, 0);
  EXPECT_NEAR(even.half, even.of_model, 0.001 * even.of_model);
  EXPECT_NEAR(more.change, even.change, 0.01 * even.change);
  const double of_mean = 1.8946 * 0.25 * std::sqrt(1.0 / 7) * even.change;
  EXPECT_GT(spread(more), of_mean);
  EXPECT_LT(spread(more), 2 * of_mean);
  EXPECT_NEAR(spread(more), 2.5 * spread(some), 0.02 * spread(more));
}

// Of a step that is measured in one further run.
TEST(Uncertainty, TheIntervalOfAStepHoldsWhatANoisyRunMeasures) {
  NoisyMachine machine;
  constexpr double kNoise = 0.1;
  HeldShare share;
  for (int seed = 0; seed < 40; ++seed) {
    const std::shared_ptr<const RecordedRun> run = machine.run(machine.late(kNoise));
    const Uncertainty uncertainty(run);
    const Scenario own = own_scenario(run);
    Prediction now = evaluate(own);
    uncertainty.add_to(own, now);
    ASSERT_TRUE(now.interval);
    for (int again = 0; again < 5; ++again) {
      const Nanoseconds measured = machine.own_step() + median(machine.late(kNoise));
      share.count(*now.interval, measured);
    }
    EXPECT_EQ(now.change_interval->low, 0);
    EXPECT_EQ(now.change_interval->high, 0);
  }
  share.expect_that_of_a_90_percent_interval();
}

// Runs of the same steps, of which one has a step that took ten times as long.
TEST(Uncertainty, OneSlowStepDoesNotWidenTheInterval) {
  NoisyMachine machine;
  std::vector<Nanoseconds> late = machine.late(0.01);
  const auto width = [&] {
    const std::shared_ptr<const RecordedRun> run = machine.run(late);
    Scenario changed = own_scenario(run);
    changed.plan.forward_prefetch = 1;
    Prediction then = evaluate(changed);
    Uncertainty(run).add_to(changed, then);
    return then.change_interval->high - then.change_interval->low;
  };
  const Nanoseconds before = width();
  *std::max_element(late.begin(), late.end()) += 9 * machine.own_step();
  EXPECT_LT(width(), before + before / 4);
}

// Half of the steps take 21 times as long as the others, so half the interval is longer than the
// step.
TEST(Uncertainty, NoStepTakesNegativeTime) {
  NoisyMachine machine;
  std::vector<Nanoseconds> late(kSteps, 0);
  for (size_t i = 0; i < late.size(); i += 2) {
    late[i] = 20 * machine.own_step();
  }
  const std::shared_ptr<const RecordedRun> run = machine.run(late);
  Scenario changed = own_scenario(run);
  changed.plan.forward_prefetch = 1;
  Prediction then = evaluate(changed);
  const Nanoseconds own = evaluate(own_scenario(run)).step.duration;
  Uncertainty(run).add_to(changed, then);
  EXPECT_GT(then.interval->high, 2 * then.step.duration);
  EXPECT_GT(then.interval->low, 0);
  EXPECT_GE(then.change_interval->low, -own);
}

Scenario on_spec(const HardwareSpec& spec) {
  Scenario out;
  out.model = std::make_shared<const ScenarioModel>(four_blocks());
  out.plan = plan::strategy_plan("full_shard", out.model->tree());
  out.step = {.batch = 4, .seq = 2048};
  out.world_size = 8;
  out.machine = std::make_shared<const TargetMachine>(spec);
  return out;
}

Prediction with_interval(const Scenario& scenario) {
  Prediction out = evaluate(scenario);
  Uncertainty(scenario.machine).add_to(scenario, out);
  return out;
}

// Each kind of constants at an end of its range is the step of a machine with these constants, and
// the kinds' logarithms add as squares.
TEST(Uncertainty, OnASpecTheIntervalIsThatOfItsConstants) {
  HardwareSpec spec = load_hardware("8xH100");
  spec.ranges = {};
  const auto step = [](const HardwareSpec& on) {
    return static_cast<double>(evaluate(on_spec(on)).step.duration);
  };
  const double middle = step(spec);
  Prediction now = with_interval(on_spec(spec));
  ASSERT_TRUE(now.interval);
  EXPECT_EQ(now.interval->low, now.step.duration);
  EXPECT_EQ(now.interval->high, now.step.duration);

  spec.ranges.products.slower = std::log(2);
  spec.ranges.memory.faster = std::log(1.5);
  HardwareSpec slower = spec, faster = spec;
  slower.software.matrix_rate /= 2;
  faster.gpu.memory_gbps *= 1.5;
  now = with_interval(on_spec(spec));
  EXPECT_NEAR(static_cast<double>(now.interval->high), step(slower), 1e-6 * middle);
  EXPECT_NEAR(static_cast<double>(now.interval->low), step(faster), 1e-6 * middle);
  EXPECT_GT(step(slower), 1.2 * middle);
  EXPECT_LT(step(faster), 0.99 * middle);

  spec.ranges.remaining = {.faster = 0, .slower = 0.1};
  now = with_interval(on_spec(spec));
  EXPECT_NEAR(std::log(static_cast<double>(now.interval->high) / middle),
              std::hypot(std::log(step(slower) / middle), 0.1), 1e-6);

  const auto tokens = tokens_interval(now);
  ASSERT_TRUE(tokens);
  EXPECT_NEAR(tokens->low * static_cast<double>(now.interval->high), now.tokens_per_s * middle,
              1e-6 * now.tokens_per_s * middle);
  EXPECT_LT(tokens->low, now.tokens_per_s);
  EXPECT_GT(tokens->high, now.tokens_per_s);
}

// Products and attention have one clock, so both are slow in the same step.
TEST(Uncertainty, TheClockIsThatOfProductsAndAttentionTogether) {
  HardwareSpec spec = load_hardware("8xH100");
  spec.ranges = {};
  spec.ranges.clock = {.faster = std::log(1.25), .slower = std::log(2)};
  const auto at = [&spec](double rate) {
    HardwareSpec out = spec;
    out.software.matrix_rate *= rate;
    out.software.attention_rate *= rate;
    return static_cast<double>(evaluate(on_spec(out)).step.duration);
  };
  const Prediction now = with_interval(on_spec(spec));
  EXPECT_NEAR(static_cast<double>(now.interval->high), at(0.5), 1e-6 * at(1));
  EXPECT_NEAR(static_cast<double>(now.interval->low), at(1.25), 1e-6 * at(1));
}

// What steps are off whose kind no stack was fitted to is one more part.
TEST(Uncertainty, IsWiderForStepsThatNoStackWasFittedTo) {
  HardwareSpec spec = load_hardware("8xH100");
  spec.ranges = {};
  spec.ranges.experts = {.faster = 0.2, .slower = 0.3};
  spec.ranges.context = {.faster = 0.4, .slower = 0.4};
  const auto half = [](const Scenario& scenario) {
    const Prediction now = with_interval(scenario);
    return std::log(static_cast<double>(now.interval->high) /
                    static_cast<double>(now.step.duration));
  };
  EXPECT_EQ(half(on_spec(spec)), 0);

  Scenario parted = on_spec(spec);
  parted.plan.mesh.context = 2;
  parted.plan.mesh.shard = 4;
  EXPECT_NEAR(half(parted), 0.4, 1e-6);

  Scenario sparse = on_spec(spec);
  sparse.model = std::make_shared<const ScenarioModel>(plan::parse_model_config(
      R"({"model_type": "qwen3_moe", "hidden_size": 128, "num_attention_heads": 4, "head_dim": 32,
          "num_key_value_heads": 4, "intermediate_size": 256, "moe_intermediate_size": 64,
          "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2, "vocab_size": 512,
          "max_position_embeddings": 4096})",
      "config.json"));
  sparse.plan = plan::strategy_plan("full_shard", sparse.model->tree());
  EXPECT_NEAR(half(sparse), 0.3, 1e-6);
}

// A recorded run's own step on a machine with the constants of its calibration. What was measured
// is taken as it is, so the model's error remains; lines of classes price it where it was not.
TEST(Uncertainty, OnACalibratedMachineTheLinesOfClassesMayBeOff) {
  const std::filesystem::path path = std::filesystem::path(SHARDLENS_TEST_DATA) / "recorded_run";
  const auto run = RecordedRun::open(std::span(&path, 1));
  const auto on = [&run](const Calibration& constants, const std::string& hardware = "") {
    Scenario out = own_scenario(run);
    out.machine = std::make_shared<const TargetMachine>(constants, hardware);
    return out;
  };
  const auto ends = [](const Prediction& of) {
    const auto step = static_cast<double>(of.step.duration);
    return std::pair(std::log(static_cast<double>(of.interval.value().low) / step),
                     std::log(static_cast<double>(of.interval.value().high) / step));
  };
  Calibration constants = *run->machine()->calibration();
  const double model = kQuantile90 * kOfCalibrated;
  for (const char* hardware : {"", "8xH100"}) {
    const auto [low, high] = ends(with_interval(on(constants, hardware)));
    EXPECT_NEAR(low, -model, 1e-6);
    EXPECT_NEAR(high, model, 1e-6);
  }

  constants.operators.clear();
  Calibration slower = constants;
  for (size_t i = 0; i < constants.classes.size(); ++i) {
    // Of a normal distribution the mean of absolute values is 0.798 of the standard deviation.
    constants.classes[i].left_out = 0.798 * 20;  // a small part of this run
    for (double KernelClass::*part : {&KernelClass::us, &KernelClass::us_per_unit}) {
      slower.classes[i].*part *= 1 + 1.6449 * 20;
    }
  }
  const Prediction now = with_interval(on(constants));
  const auto step = static_cast<double>(now.step.duration);
  const double lines = std::log(static_cast<double>(evaluate(on(slower)).step.duration) / step);
  EXPECT_GT(lines, model);
  EXPECT_NEAR(ends(now).second, std::hypot(lines, model), 1e-3);
}

// A GPU with published runs, one that has the constants of the nearest, and ideal software.
TEST(Uncertainty, IsWiderWithoutRunsOfTheGpu) {
  const auto width = [](const HardwareSpec& spec) {
    const Prediction now = with_interval(on_spec(spec));
    return std::log(static_cast<double>(now.interval->high) /
                    static_cast<double>(now.interval->low));
  };
  const double fitted = width(default_hardware("8xH100")),
               nearest = width(default_hardware("8xH200")),
               bare = width(as_bare(load_hardware("8xH100")));
  EXPECT_GT(fitted, 0.1);
  EXPECT_LT(1.5 * fitted, nearest);
  EXPECT_LT(1.5 * fitted, bare);
}

}  // namespace
}  // namespace shardlens::sim
