// What a search predicts of a plan is what predict() says of it with the whole timeline.
#include "sim/search/evaluator.h"

#include <gtest/gtest.h>

#include "sim/cost/gpu_cost_model.h"
#include "sim/predict/predict.h"

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
};

class EvaluatorTest : public ::testing::TestWithParam<Kind> {};

TEST_P(EvaluatorTest, EqualsTheFullTimeline) {
  const Kind& kind = GetParam();
  const plan::ModelConfig model = config();
  const plan::ModuleTree tree = plan::module_tree(model);
  HardwareSpec hardware = load_hardware("8xH100");
  hardware.gpus = kind.ranks / kind.nodes;
  hardware.nodes = kind.nodes;
  hardware.fabric.network_gbps = 20;
  const GpuCostModel costs(hardware);
  const Target target = target_of(hardware, costs);
  plan::Plan base;
  base.dialect = kind.dialect;
  base.layout = kind.layout;
  if (kind.half) {
    base.mixed_precision.param_dtype = DType::kBF16;
    base.mixed_precision.reduce_dtype = DType::kF32;
  }
  Evaluator evaluator({.config = model,
                       .tree = tree,
                       .base = base,
                       .target = target,
                       .host = kind.host,
                       .ranks = kind.ranks,
                       .seq = kTokens,
                       .sync_every_microbatch = kind.sync});
  const std::vector<Candidate> all = candidates(tree, kind.ranks, kSequences);
  ASSERT_GT(all.size(), 300U);
  RunSettings settings;
  settings.sync_every_microbatch = kind.sync;
  settings.list_alive = false;
  settings.simulation.host = kind.host;
  for (const Candidate& candidate : all) {
    const plan::ResolvedPlan plan =
        plan::resolve(plan_of(candidate, base, tree, kind.ranks), tree, kind.ranks);
    const plan::Workload workload = plan::step_workload(model, plan, candidate.batch, kTokens);
    settings.accumulate = candidate.accumulate;
    const Prediction full = predict(workload, plan, hardware, settings);
    const Outcome found = evaluator.evaluate(candidate);
    SCOPED_TRACE(name_of(candidate, kind.ranks));
    ASSERT_EQ(found.step, full.step.duration);
    ASSERT_EQ(found.compute, full.busy.compute);
    ASSERT_EQ(found.exposed_comm, full.busy.exposed_comm);
    ASSERT_EQ(found.exposed_copy, full.busy.exposed_copy);
    ASSERT_EQ(found.idle, full.busy.idle);
    ASSERT_EQ(found.peak, full.memory.peak_reserved);
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
        Kind{"Fsdp1", plan::Dialect::kFsdp1, plan::Layout::kFlat, false, true, 4},
        Kind{"TwoNodes", plan::Dialect::kFsdp2, plan::Layout::kFlat, true, false, 4, 2},
        Kind{"HostComputes", plan::Dialect::kFsdp2, plan::Layout::kFlat, false, true, 4, 1,
             HostMode::kCompute}),
    [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace shardlens::sim
