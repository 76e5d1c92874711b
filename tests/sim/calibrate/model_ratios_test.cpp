#include "sim/calibrate/model_ratios.h"

#include <gtest/gtest.h>

#include "core/model/model_config.h"
#include "core/plan/resolve.h"

namespace shardlens::sim {
namespace {

using plan::Operator;
using plan::OperatorKind;

constexpr const char* kModule = "model.layers.0.mlp.up_proj";

plan::ResolvedPlan a_plan() {
  const plan::ModelConfig config = plan::parse_model_config(
      R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
          "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 256})",
      "config.json");
  const plan::ModuleTree tree = plan::module_tree(config);
  return plan::resolve(plan::strategy_plan("full_shard", tree), tree, 2);
}

Operator product(double gflop) {
  Operator out;
  out.kind = OperatorKind::kGemm;
  out.name = "aten::mm";
  out.module = kModule;
  out.unit = 1;
  out.flops = static_cast<int64_t>(gflop * 1e9);
  return out;
}
Operator pass(const std::string& name, double megabytes) {
  Operator out;
  out.name = name;
  out.module = kModule;
  out.unit = 1;
  out.read = static_cast<Bytes>(megabytes * 1e6);
  return out;
}
plan::Workload workload(std::vector<Operator> operators) {
  plan::Workload out;
  out.operators = std::move(operators);
  return out;
}

// A GFLOP takes 10 us, a MB 5 us.
Calibration known_rates() {
  Calibration out;
  out.host = HostMode::kCompute;
  out.classes = {{.name = "gemm", .us_per_unit = 10, .issue_us = 1},
                 {.name = "aten::mul", .us_per_unit = 5, .issue_us = 1},
                 {.name = "attention", .us_per_unit = 10, .issue_us = 1}};
  return out;
}

class ModelRatiosTest : public ::testing::Test {
 protected:
  [[nodiscard]] ModelRatios ratios(std::vector<Operator> recorded, std::vector<Operator> model) {
    return {workload(std::move(recorded)), plan_, workload(std::move(model)), plan_, costs_};
  }
  [[nodiscard]] double us(const ModelRatios& ratios, const Operator& op) const {
    return static_cast<double>(ratios.compute(op, costs_).alone) * 1e-3;
  }

  plan::ResolvedPlan plan_ = a_plan();
  Calibration calibration_ = known_rates();
  CalibratedCostModel costs_{calibration_};
};

TEST_F(ModelRatiosTest, EachKindTakesWhatWasRecorded) {
  // The program's products take half of what the model's would.
  const ModelRatios found =
      ratios({product(2), pass("aten::mul", 1)}, {product(4), pass("aten::mul", 1)});
  EXPECT_DOUBLE_EQ(us(found, product(4)), 20);
  EXPECT_DOUBLE_EQ(us(found, product(1)), 5);
  EXPECT_DOUBLE_EQ(us(found, pass("aten::mul", 0.5)), 2.5);
}

TEST_F(ModelRatiosTest, UnknownClassesTakeTheRateOfTheirKind) {
  const ModelRatios found =
      ratios({product(2), pass("aten::mul", 1)}, {product(2), pass("aten::mul", 1)});
  EXPECT_DOUBLE_EQ(us(found, pass("aten::cat", 3)), 15);
  // Issued as the mean of the recorded operators.
  EXPECT_EQ(found.issue(pass("aten::cat", 3), costs_), 1000);
}

// 40 us were recorded, of which the model has 25: the others take 1.6 times as long.
TEST_F(ModelRatiosTest, WhatTheModelDoesNotRunIsSharedOut) {
  Operator attention = product(1.5);
  attention.kind = OperatorKind::kAttention;
  attention.name = "aten::scaled_dot_product_attention";
  const ModelRatios found =
      ratios({product(2), pass("aten::mul", 1), attention}, {product(2), pass("aten::mul", 1)});
  EXPECT_DOUBLE_EQ(us(found, product(2)) + us(found, pass("aten::mul", 1)), 40);
}

// Operators outside of the blocks, and those of backward, have factors of their own.
TEST_F(ModelRatiosTest, PartsOfAStepAreApart) {
  Operator outside = product(2), backward = product(2);
  outside.module = "lm_head";
  outside.unit = 0;
  backward.phase = plan::Phase::kBackward;
  Operator recorded_backward = backward;
  recorded_backward.flops *= 3;
  const ModelRatios found =
      ratios({product(2), outside, recorded_backward}, {product(1), outside, backward});
  EXPECT_DOUBLE_EQ(us(found, product(1)), 20);
  EXPECT_DOUBLE_EQ(us(found, outside), 20);
  EXPECT_DOUBLE_EQ(us(found, backward), 60);
}

// An all-gather between four ranks of 4 MB takes 300 us, three steps of 1 MB. Where an all-to-all
// of 1 MB was measured, a message of 1 MB takes its time.
TEST(CalibratedSendRecv, IsAStepOfARing) {
  constexpr Bytes kMegabyte = 1'000'000;
  Calibration calibration;
  calibration.curves = {{CollectiveKind::kAllGather, 4, {{kMegabyte, 75}, {4 * kMegabyte, 300}}}};
  const auto us = [&calibration] {
    const CalibratedCostModel costs(calibration);
    return static_cast<double>(costs.duration(CollectiveKind::kSendRecv, 4, kMegabyte)) * 1e-3;
  };
  EXPECT_NEAR(us(), 100, 1e-6);
  calibration.curves.push_back(
      {CollectiveKind::kAllToAll, 4, {{kMegabyte, 120}, {2 * kMegabyte, 240}}});
  EXPECT_NEAR(us(), 120, 1e-6);
}

}  // namespace
}  // namespace shardlens::sim
