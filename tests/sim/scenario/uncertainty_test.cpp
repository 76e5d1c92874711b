#include "sim/scenario/uncertainty.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "core/plan/plan.h"
#include "sim/engine/simulated_run.h"

namespace shardlens::sim {
namespace {

constexpr int kSteps = 8;

// A machine that is simulated, whose steps have noise: the host is late at the end of each step.
class NoisyMachine {
 public:
  NoisyMachine() {
    scenario_.model = std::make_shared<const ScenarioModel>(plan::parse_model_config(
        R"({"model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816,
            "num_hidden_layers": 4, "num_attention_heads": 16, "vocab_size": 4096,
            "max_position_embeddings": 2048})",
        "test"));
    scenario_.plan = plan::strategy_plan("full_shard", scenario_.model->tree());
    scenario_.step = {.batch = 1, .seq = 512};
    scenario_.machine = std::make_shared<const TargetMachine>(load_hardware("4xPCIe"));
    scenario_.world_size = 4;
    own_ = evaluate(scenario_, {.timeline = true});
  }

  [[nodiscard]] Nanoseconds own_step() const { return own_.step.duration; }
  // What a plan's step takes more than the own plan's, without noise.
  [[nodiscard]] Nanoseconds true_change(const plan::Plan& plan) const {
    Scenario changed = scenario_;
    changed.plan = plan;
    return evaluate(changed).step.duration - own_step();
  }

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
    SimulatedRunOptions options;
    options.host = own_.host;
    options.steps = kSteps;
    options.device_name = own_.device;
    trace::Run run = simulated_run(own_.priced, own_.step, options);
    for (trace::Trace& trace : run.traces) {
      for (trace::Event& event : trace.events) {
        const auto step = static_cast<size_t>(event.start / own_step());
        for (size_t i = 0; i < std::min<size_t>(step, kSteps); ++i) {
          event.start += late[i];
        }
        if (trace.name(event).starts_with("ProfilerStep#")) {
          event.duration += late[step];
        }
      }
    }
    run.planned = trace::PlannedInputs{*own_.priced.plan, *own_.priced.workload, own_.settings, {}};
    return RecordedRun::of(run);
  }

 private:
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

// Of a change that is measured as the difference of two runs' medians, with an independent noise
// in each. (A change that moves much has a wider interval, because of the model's own error.)
TEST(Uncertainty, TheIntervalOfAChangeHoldsWhatTwoNoisyRunsMeasure) {
  NoisyMachine machine;
  constexpr double kNoise = 0.1;
  HeldShare share;
  for (int seed = 0; seed < 40; ++seed) {
    const std::shared_ptr<const RecordedRun> run = machine.run(machine.late(kNoise));
    const Uncertainty uncertainty(run);
    Scenario changed = own_scenario(run);
    changed.plan.forward_prefetch = 1;
    Prediction then = evaluate(changed);
    uncertainty.add_to(changed, then);
    ASSERT_TRUE(then.change_interval);
    const Nanoseconds truth = machine.true_change(changed.plan);
    for (int again = 0; again < 5; ++again) {
      const Nanoseconds measured =
          truth + median(machine.late(kNoise)) - median(machine.late(kNoise));
      share.count(*then.change_interval, measured);
    }
  }
  share.expect_that_of_a_90_percent_interval();
}

// The same for the step itself, measured in one further run.
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

}  // namespace
}  // namespace shardlens::sim
