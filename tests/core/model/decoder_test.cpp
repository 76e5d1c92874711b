#include "core/model/decoder.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/model/step_workload.h"
#include "core/plan/resolve.h"

namespace shardlens::plan {
namespace {

constexpr DecoderShape kMpt125m{.layers = 12,
                                .hidden = 768,
                                .ffn = 3072,
                                .heads = 12,
                                .kv_heads = 12,
                                .vocab = 50368,
                                .positions = 2048,
                                .tied = true,
                                .bias = true};
constexpr DecoderShape kLlama8b{.layers = 32,
                                .hidden = 4096,
                                .ffn = 14336,
                                .heads = 32,
                                .kv_heads = 8,
                                .vocab = 128256,
                                .gated = true};

int64_t elements(const ModuleTree& tree) {
  int64_t count = 0;
  for (const Parameter& parameter : tree.parameters) {
    count += parameter.numel;
  }
  return count;
}

// The parameter counts that llm-foundry and Llama 3.1 state for these models.
TEST(Decoder, HasAsManyParametersAsTheModelsItStandsFor) {
  EXPECT_EQ(parameter_count(kMpt125m), 125311488);
  EXPECT_EQ(elements(decoder_tree(kMpt125m)), 125311488);
  EXPECT_EQ(parameter_count(kLlama8b), 8030261248);
  EXPECT_EQ(elements(decoder_tree(kLlama8b)), 8030261248);
}

TEST(Decoder, GatedStepHasTheFlopsOfTheLlamaThatTheEngineTrains) {
  const ModelConfig config = parse_model_config(
      R"({"model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
          "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
          "vocab_size": 1000, "max_position_embeddings": 128})",
      "test");
  const DecoderShape shape{.layers = 3,
                           .hidden = 256,
                           .ffn = 512,
                           .heads = 8,
                           .kv_heads = 2,
                           .vocab = 1000,
                           .gated = true};
  const auto flops = [](const Workload& workload, OperatorKind kind, Phase phase) {
    int64_t sum = 0;
    for (const Operator& op : workload.operators) {
      sum += op.kind == kind && op.phase == phase ? op.flops : 0;
    }
    return sum;
  };
  const ModuleTree llama = module_tree(config), tree = decoder_tree(shape);
  const ResolvedPlan of_llama = resolve(strategy_plan("full_shard", llama), llama, 4);
  const ResolvedPlan plan = resolve(strategy_plan("full_shard", tree), tree, 4);
  const Workload expected = step_workload(config, of_llama, {.batch = 2, .seq = 64});
  const Workload found = decoder_workload(shape, plan, {.batch = 2, .seq = 64});
  for (const OperatorKind kind : {OperatorKind::kGemm, OperatorKind::kAttention}) {
    for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
      EXPECT_GT(flops(expected, kind, phase), 0);
      EXPECT_EQ(flops(found, kind, phase), flops(expected, kind, phase));
    }
  }
  EXPECT_EQ(plan.units.size(), of_llama.units.size());
}

TEST(Decoder, StepOfAnUntiedUngatedOneHasEveryWeightOnce) {
  DecoderShape shape = kMpt125m;
  shape.tied = false;
  const ModuleTree tree = decoder_tree(shape);
  const ResolvedPlan plan = resolve(strategy_plan("full_shard", tree), tree, 8);
  const Workload workload = decoder_workload(shape, plan, {.batch = 1, .seq = 128});
  // Forward: two products per attention, two per MLP, and the head; backward: twice as many.
  int products[2] = {0, 0};
  for (const Operator& op : workload.operators) {
    if (op.kind == OperatorKind::kGemm) {
      ++products[op.phase == Phase::kBackward ? 1 : 0];
    }
  }
  EXPECT_EQ(products[0], 4 * 12 + 1);
  EXPECT_EQ(products[1], 2 * (4 * 12 + 1));
}

TEST(Decoder, RefusesMoreTokensThanPositions) {
  const ModuleTree tree = decoder_tree(kMpt125m);
  const ResolvedPlan plan = resolve(strategy_plan("full_shard", tree), tree, 8);
  EXPECT_THROW((void)decoder_workload(kMpt125m, plan, {.batch = 1, .seq = 2049}), InputError);
  EXPECT_THROW((void)decoder_workload(kMpt125m, plan, {.batch = 0, .seq = 128}), InputError);
}

}  // namespace
}  // namespace shardlens::plan
