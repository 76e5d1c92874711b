// A search predicts the same of a plan as evaluate() does with the whole timeline.
#include "sim/search/evaluator.h"

#include <gtest/gtest.h>

#include "sim/scenario/scenario.h"

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
  for (const Candidate& candidate : all) {
    Scenario one = scenario;
    one.plan = plan_of(candidate, scenario.plan, tree, kind.ranks);
    one.step.batch = candidate.batch;
    one.step.accumulate = candidate.accumulate;
    const Prediction full = evaluate(one, {.timeline = true});
    const Outcome found = evaluator.evaluate(candidate);
    SCOPED_TRACE(name_of(candidate, kind.ranks));
    ASSERT_EQ(found.figures, full.figures);
    ASSERT_EQ(found.figures.duration(), full.step.duration);
    ASSERT_EQ(found.peak_reserved, full.memory.peak_reserved);
    ASSERT_EQ(found.peak_allocated, full.memory.peak_allocated);
    ASSERT_TRUE(found.fits);
  }
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
