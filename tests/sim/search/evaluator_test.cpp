// A search predicts the same of a plan as evaluate() does with the whole timeline.
#include "sim/search/evaluator.h"

#include <gtest/gtest.h>

#include "sim/scenario/scenario.h"
#include "sim/search/block_plan.h"
#include "tests/support/sanitized.h"

namespace shardlens::sim {
namespace {

constexpr int64_t kTokens = 64, kSequences = 12;

plan::ModelConfig config() {
  return plan::parse_model_config(R"({"model_type": "llama", "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 128})",
                                  "small");
}

struct Kind {
  const char* name;
  plan::Dialect dialect;
  plan::Layout layout;
  bool half, sync;
  int64_t ranks;
  int64_t nodes = 1;
  HostMode host = HostMode::kAhead;
  bool offload = false;
  bool waits_for_loss = false;
};

void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

class EvaluatorTest : public ::testing::TestWithParam<Kind> {};

TEST_P(EvaluatorTest, EqualsTheFullTimeline) {
  const Kind& kind = GetParam();
  HardwareSpec hardware = load_hardware("8xH100");
  hardware.gpus = kind.ranks / kind.nodes;
  hardware.nodes = kind.nodes;
  hardware.fabric.network_gbps = 20;
  Scenario scenario;
  scenario.model = std::make_shared<const ScenarioModel>(config());
  scenario.plan.dialect = kind.dialect;
  scenario.plan.layout = kind.layout;
  scenario.plan.cpu_offload = kind.offload;
  if (kind.half) {
    scenario.plan.mixed_precision.param_dtype = DType::kBF16;
    scenario.plan.mixed_precision.reduce_dtype = DType::kF32;
  }
  scenario.world_size = kind.ranks;
  scenario.step = {.seq = kTokens, .sync_every_microbatch = kind.sync};
  scenario.machine = std::make_shared<const TargetMachine>(hardware);
  scenario.host = kind.host;
  scenario.waits_for_loss = kind.waits_for_loss;
  const plan::ModuleTree& tree = scenario.model->tree();
  Evaluator evaluator(scenario, scenario.machine->target());
  const std::vector<Candidate> all = candidates(tree, kind.ranks, kSequences);
  ASSERT_GT(all.size(), 300U);
  for (size_t i = 0; i < all.size(); i += test::kSanitized ? 3 : 1) {
    const Candidate& candidate = all[i];
    const Prediction full = evaluate(scenario_of(candidate, scenario), {.timeline = true});
    const Outcome found = evaluator.evaluate(candidate);
    SCOPED_TRACE(name_of(candidate, kind.ranks));
    ASSERT_EQ(found.figures, full.figures);
    ASSERT_EQ(found.figures.duration(), full.step.duration);
    ASSERT_EQ(found.peak_reserved, full.memory.peak_reserved);
    ASSERT_EQ(found.peak_allocated, full.memory.peak_allocated);
    ASSERT_TRUE(found.fits);
  }
}

// Blocks with settings of their own, between candidates without: what the evaluator keeps of one is
// never used for another that it is not of.
TEST(EvaluatorOfBlocksTest, EqualsTheFullTimeline) {
  Scenario scenario;
  scenario.model = std::make_shared<const ScenarioModel>(config());
  scenario.world_size = 4;
  scenario.step = {.seq = kTokens};
  scenario.machine = std::make_shared<const TargetMachine>(load_hardware("8xH100"));
  const size_t blocks = scenario.model->tree().blocks.size();
  const std::vector<Candidate> frames = plan_frames(scenario.model->tree(), 4, kSequences,
                                                    {{DType::kF32}, {DType::kBF16, DType::kF32}});
  const std::vector<Candidate> alike = candidates(scenario.model->tree(), 4, kSequences);
  const Target& target = scenario.machine->target();
  Evaluator evaluator(scenario, target);
  uint32_t bits = 1;
  for (size_t i = 0; i < 300; ++i) {
    const auto next = [&bits] { return (bits = 1664525 * bits + 1013904223) >> 16; };
    Candidate one = alike[next() % alike.size()];
    if (i % 4 != 0) {
      one = frames[next() % frames.size()];
      one.blocks = uniform_choices(one, blocks, next() % 2 == 0);
      for (BlockChoice& each : one.blocks) {
        each.checkpointed = next() % 3 == 0;
        each.kept = each.starts && (each.kept != (next() % 4 == 0));
      }
      if (one.shard > 1 && next() % 2 == 0) {
        one.root_prefetch.backward = 0;
        one.blocks.front().prefetch.forward = 2;
      }
    }
    // The same again with other units kept, which has the same operators.
    for (int again = 0; again < 2; ++again) {
      SCOPED_TRACE(name_of(one, 4));
      const Prediction full = evaluate(scenario_of(one, scenario), {.timeline = true});
      const Outcome found = evaluator.evaluate(one), unlimited = evaluator.evaluate_unlimited(one);
      ASSERT_EQ(found.figures, full.figures);
      ASSERT_EQ(found.peak_reserved, full.memory.peak_reserved);
      ASSERT_EQ(found.peak_allocated, full.memory.peak_allocated);
      ASSERT_EQ(unlimited, found);
      for (BlockChoice& each : one.blocks) {
        each.kept = each.starts && !each.kept;
      }
    }
  }
  EXPECT_EQ(evaluator.evaluated(), 1200U);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    EvaluatorTest,
    ::testing::Values(
        Kind{"Fsdp2", plan::Dialect::kFsdp2, plan::Layout::kFlat, true, true, 8},
        Kind{"NoSync", plan::Dialect::kFsdp2, plan::Layout::kPerParameter, true, false, 4},
        Kind{.name = "WaitsForLoss",
             .dialect = plan::Dialect::kFsdp2,
             .layout = plan::Layout::kFlat,
             .half = true,
             .sync = true,
             .ranks = 2,
             .waits_for_loss = true},
        Kind{"Fsdp1", plan::Dialect::kFsdp1, plan::Layout::kFlat, false, true, 4},
        Kind{"Fsdp1NoSync", plan::Dialect::kFsdp1, plan::Layout::kPerParameter, false, false, 4},
        Kind{"TwoNodes", plan::Dialect::kFsdp2, plan::Layout::kFlat, true, false, 4, 2},
        Kind{"HostComputes", plan::Dialect::kFsdp2, plan::Layout::kFlat, false, true, 4, 1,
             HostMode::kCompute},
        Kind{"Offload", plan::Dialect::kFsdp2, plan::Layout::kFlat, true, true, 4, 1,
             HostMode::kAhead, true},
        Kind{"OffloadFsdp1", plan::Dialect::kFsdp1, plan::Layout::kFlat, false, true, 4, 1,
             HostMode::kAhead, true}),
    [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace shardlens::sim
