#include "sim/scenario/other_speeds.h"

#include <cmath>

#include <gtest/gtest.h>

#include "sim/cost/gpu_cost_model.h"

namespace shardlens::sim {
namespace {

Scenario speeds_scenario(int64_t ranks) {
  Scenario out;
  out.model = std::make_shared<const ScenarioModel>(plan::parse_model_config(
      R"({"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096,
          "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 32000,
          "max_position_embeddings": 2048})",
      "test"));
  out.plan = plan::strategy_plan("full_shard", out.model->tree());
  out.world_size = ranks;
  out.step = {.batch = 2, .seq = 1024};
  out.machine = std::make_shared<const TargetMachine>(load_hardware("8xH100"));
  return out;
}

TEST(OtherSpeeds, AtItsOwnSpeedsTheStepIsThePrediction) {
  for (const int64_t ranks : {1, 8}) {
    Scenario of = speeds_scenario(ranks);
    of.step.accumulate = 2;
    const Prediction prediction = evaluate(of);
    const StepPrediction same = at_speeds(of, prediction, {});
    EXPECT_EQ(same.figures, prediction.figures) << ranks;
    EXPECT_DOUBLE_EQ(same.tokens_per_s, prediction.tokens_per_s);
  }
}

// A rank by itself only computes, and waits for its host. Each kernel is rounded to a nanosecond.
TEST(OtherSpeeds, ComputeOnOneRankTakesItsShare) {
  const Scenario of = speeds_scenario(1);
  const Prediction prediction = evaluate(of);
  const auto compute = static_cast<double>(prediction.figures.compute);
  const auto at = [&](double speed) {
    return static_cast<double>(at_speeds(of, prediction, {.compute = speed}).figures.compute);
  };
  EXPECT_NEAR(at(0.5), 2 * compute, 0.001 * compute);
  EXPECT_NEAR(at(4), compute / 4, 0.001 * compute);
}

// A collective is its latency, the time of one byte, and what its bytes take.
TEST(OtherSpeeds, LatencyAndBandwidthAreApart) {
  const HardwareSpec spec = load_hardware("8xH100");
  const GpuCostModel base(spec);
  constexpr Bytes kMessage = Bytes{1} << 28;
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    const Nanoseconds all = base.duration(kind, 8, kMessage), first = base.duration(kind, 8, 1);
    EXPECT_EQ(ScaledCostModel(base, {.latency = 3}).duration(kind, 8, kMessage), all + 2 * first);
    EXPECT_NEAR(
        static_cast<double>(ScaledCostModel(base, {.bandwidth = 2}).duration(kind, 8, kMessage)),
        static_cast<double>(all + first) / 2, 1);
    EXPECT_EQ(ScaledCostModel(base, {.bandwidth = 1e9}).duration(kind, 8, kMessage), first);
  }
}

// What slows the machine never shortens a step, and what hurts most is what bounds it.
TEST(OtherSpeeds, ASlowHostBoundsTheStep) {
  const Scenario of = speeds_scenario(8);
  const Prediction prediction = evaluate(of);
  const StepFigures slow = at_speeds(of, prediction, {.host = 0.01}).figures;
  EXPECT_LE(slow.compute, prediction.figures.compute);  // less concurrent communication
  EXPECT_GT(slow.idle, 10 * prediction.figures.idle);
  Nanoseconds last = 0;
  for (const double bandwidth : {4.0, 1.0, 0.25, 0.0625}) {
    const StepFigures now = at_speeds(of, prediction, {.bandwidth = bandwidth}).figures;
    EXPECT_GE(now.duration(), last);
    last = now.duration();
  }
}

}  // namespace
}  // namespace shardlens::sim
