#include <algorithm>
#include <memory>

#include <gtest/gtest.h>

#include "core/plan/unit_sizes.h"
#include "sim/scenario/scenario.h"

namespace shardlens::sim {
namespace {

// One layer: H 2048, I 1024, 16 experts of which a token has 4, V 32000.
constexpr const char* kSparse = R"({"model_type": "qwen3_moe", "hidden_size": 2048,
  "intermediate_size": 8192, "moe_intermediate_size": 1024, "num_hidden_layers": 1,
  "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000, "num_experts": 16,
  "num_experts_per_tok": 4, "max_position_embeddings": 32768})";
constexpr int64_t kWidth = 2048, kOfExpert = 3 * 2048 * 1024, kCount = 16;
constexpr int64_t kTokenRows = 4096 * 4;  // of a rank's tokens, one for each of a token's experts
constexpr double kLinkGbps = 100;

// All of the 8 ranks of one node have other experts; rings of 100 GB/s connect them. One unit is
// gathered before and reduced after all, so that nothing shares the links.
Scenario expert_scenario(double skew) {
  Scenario out;
  out.model = std::make_shared<const ScenarioModel>(plan::parse_model_config(kSparse, "test"));
  out.plan.mesh = {.shard = 8, .expert = 8};
  out.plan.units.emplace_back().globs = {""};
  out.world_size = 8;
  out.step = {.batch = 1, .seq = 4096, .expert_skew = skew};
  HardwareSpec hardware = load_hardware("8xH100");
  hardware.fabric.ring_gbps = kLinkGbps;
  hardware.fabric.reduce_scatter_ratio = 1;
  hardware.fabric.curves.clear();
  hardware.fabric.nvls_gbps = 0;
  out.machine = std::make_shared<const TargetMachine>(hardware);
  return out;
}

analysis::CommunicationFigures figures_of_tokens(const Prediction& now) {
  const auto found = std::ranges::find(now.communication, Purpose::kTokens,
                                       &analysis::CommunicationFigures::purpose);
  return found == now.communication.end() ? analysis::CommunicationFigures{} : *found;
}

// Four all-to-alls of rows, after one of a number for each expert. A rank sends to its 7 peers at
// the same time. NCCL's latencies for a step over NVLink (src/graph/tuning.cc), of its protocol
// Simple; the least that nccl-tests measured for small messages.
double exchange_us(double bytes) {
  const double latency = 8.4 + 3.4, least = 10.3;
  return 4 * (latency + bytes * 7 / 8 / (kLinkGbps * 1e3)) + least;
}

TEST(ExpertParallel, BalancedTokensTakeTheirTimeOnTheLinks) {
  const Prediction now = evaluate(expert_scenario(0), {.timeline = true, .communication = true});
  const analysis::CommunicationFigures tokens = figures_of_tokens(now);
  const Bytes rows = kTokenRows * kWidth * 4;
  EXPECT_EQ(tokens.group, "expert");
  EXPECT_EQ(tokens.ranks, 8);
  EXPECT_EQ(tokens.kind, CollectiveKind::kAllToAll);
  EXPECT_EQ(tokens.count, 5);
  EXPECT_EQ(tokens.bytes, 4 * rows + kCount * 8);
  EXPECT_NEAR(static_cast<double>(tokens.busy) * 1e-3, exchange_us(static_cast<double>(rows)), 0.2);
  EXPECT_EQ(tokens.exposed, tokens.busy);  // what follows needs the rows
}

// The first rank receives the rows of all 8 ranks, seven eighths of them over its link, and returns
// as many.
TEST(ExpertParallel, TheRankOfTheOnlyChosenExpertReceivesAllTokens) {
  const Prediction now = evaluate(expert_scenario(100), {.timeline = true, .communication = true});
  const analysis::CommunicationFigures tokens = figures_of_tokens(now);
  const Bytes rows = 8 * kTokenRows * kWidth * 4;
  EXPECT_EQ(tokens.bytes, 4 * rows + kCount * 8);
  EXPECT_NEAR(static_cast<double>(tokens.busy) * 1e-3, exchange_us(static_cast<double>(rows)), 0.5);
  EXPECT_GT(now.step.duration, evaluate(expert_scenario(0)).step.duration);
}

// Shards of a layer's experts and of the rest are of the same size whatever `expert` is, but a rank
// gathers only its own experts.
TEST(ExpertParallel, ARankGathersItsOwnExperts) {
  for (const int64_t ranks : {1, 2, 4, 8}) {
    Scenario of = expert_scenario(0);
    of.plan.mesh.expert = ranks;
    of.plan.units.front().globs = {"model.layers.*.mlp.experts"};
    of.plan.units.emplace_back().globs = {""};
    const Prediction now = evaluate(of);
    const plan::ResolvedPlan& plan = *now.priced.plan;
    const std::vector<plan::UnitSize> sizes = plan::unit_sizes(plan);
    const auto experts =
        std::ranges::find(plan.units, "model.layers.0.mlp.experts", &plan::Unit::fqn);
    ASSERT_NE(experts, plan.units.end());
    const plan::UnitSize& size = sizes[static_cast<size_t>(experts - plan.units.begin())];
    EXPECT_EQ(size.sharded, kCount * kOfExpert * 4 / 8) << ranks;
    EXPECT_EQ(size.unsharded, kCount / ranks * kOfExpert * 4) << ranks;
  }
}

}  // namespace
}  // namespace shardlens::sim
