#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/model/step_workload.h"
#include "core/plan/resolve.h"

namespace shardlens::plan {
namespace {

using testing::ElementsAre;

// One layer: H 64, 8 experts of I 32, of which a token has K 2. T tokens, N = T·K rows, in bf16.
constexpr int64_t kTitanHidden = 64, kTitanInner = 32, kTitanExperts = 8, kTitanPerToken = 2;
constexpr int64_t kTitanBatch = 2, kTitanSeq = 64, kTitanTokens = kTitanBatch * kTitanSeq,
                  kTitanRows = kTitanTokens * kTitanPerToken;
constexpr Bytes kHalf = 2, kWide = 4;

ModelConfig titan_model() {
  return parse_model_config(R"({"model_type": "qwen3_moe", "hidden_size": 64,
      "intermediate_size": 128, "moe_intermediate_size": 32, "num_hidden_layers": 1,
      "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "num_experts": 8,
      "num_experts_per_tok": 2, "norm_topk_prob": true, "vocab_size": 256,
      "max_position_embeddings": 1024})",
                            "config.json");
}

Workload titan_step(Program program, const std::string& keys = "", int64_t world = 2) {
  const ModelConfig config = titan_model();
  const std::string text =
      R"({"version": 1, "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"})" +
      keys + "}";
  const ResolvedPlan plan = resolve(parse_plan(text, "plan.json"), module_tree(config), world);
  StepSettings settings{.batch = kTitanBatch, .seq = kTitanSeq, .program = program};
  settings.software.loss_chunks = 1;
  return step_workload(config, plan, settings);
}

// Names of the operators of a module in the phase.
std::vector<std::string> operators_of(const Workload& workload,
                                      const std::string& module,
                                      Phase phase) {
  std::vector<std::string> out;
  for (const Operator& op : workload.operators) {
    if (op.module == "model.layers.0." + module && op.phase == phase) {
      out.push_back(op.name.substr(op.name.find("::") + 2));
    }
  }
  return out;
}

std::vector<Operator> named(const Workload& workload, const std::string& name) {
  std::vector<Operator> out;
  std::ranges::copy_if(workload.operators, std::back_inserter(out),
                       [&](const Operator& op) { return op.name == name; });
  return out;
}

// LocalTokenDispatcher and GroupedExperts of models/common, torchtitan 0.3, and their backward.
TEST(TorchtitanExperts, Version03CopiesRowsOnceAndWeighsThemInFp32) {
  const Workload workload = titan_step(Program::kTorchtitan03);
  EXPECT_THAT(
      operators_of(workload, "mlp.experts", Phase::kForward),
      ElementsAre("index", "_grouped_mm", "_grouped_mm", "silu", "mul", "_grouped_mm", "_to_copy",
                  "mul", "_to_copy", "zeros_like", "deterministic_scatter_add"));
  EXPECT_THAT(
      operators_of(workload, "mlp.experts", Phase::kBackward),
      ElementsAre("gather", "_to_copy", "mul", "mul", "sum", "_to_copy", "_grouped_mm",
                  "_grouped_mm", "mul", "mul", "silu_backward", "_grouped_mm", "_grouped_mm",
                  "_grouped_mm", "_grouped_mm", "add", "new_zeros", "index_put"));
  const Operator add = named(workload, "torchtitan::deterministic_scatter_add").at(0);
  EXPECT_EQ(add.read, (kTitanRows + kTitanTokens) * kTitanHidden * kHalf);
  EXPECT_EQ(add.written, kTitanTokens * kTitanHidden * kHalf);
}

// Its router multiplies in fp32: torch.autocast casts what it takes, and the gradient back.
TEST(TorchtitanExperts, Version03RoutesInFp32) {
  const Workload workload = titan_step(Program::kTorchtitan03);
  std::vector<Operator> products;
  for (const Operator& op : workload.operators) {
    if (op.module == "model.layers.0.mlp.gate" && op.kind == OperatorKind::kGemm) {
      products.push_back(op);
    }
  }
  ASSERT_EQ(products.size(), 3U);
  for (const Operator& each : products) {
    EXPECT_EQ(each.dtype, DType::kF32);
  }
  EXPECT_EQ(products[0].saved, kTitanTokens * kTitanHidden * kWide);
  EXPECT_EQ(products[0].read, (kTitanTokens * kTitanHidden + kTitanHidden * kTitanExperts) * kWide);
  EXPECT_THAT(operators_of(workload, "mlp.gate", Phase::kForward),
              ElementsAre("_to_copy", "mm", "_softmax"));
  EXPECT_THAT(operators_of(workload, "mlp.gate", Phase::kBackward),
              ElementsAre("_softmax_backward_data", "mm", "mm", "_to_copy", "add"));
}

// Rows come in groups of any size, without a row of zeros behind them.
TEST(TorchtitanExperts, Version03DoesNotPadRows) {
  const Workload workload =
      titan_step(Program::kTorchtitan03, R"(, "mesh": {"shard": 4, "expert": 4})", 4);
  EXPECT_THAT(
      operators_of(workload, "mlp.experts", Phase::kForward),
      ElementsAre("index", "_grouped_mm", "_grouped_mm", "silu", "mul", "_grouped_mm", "index_put_",
                  "_to_copy", "mul", "_to_copy", "zeros_like", "deterministic_scatter_add"));
  int64_t flops = 0;
  for (const Operator& op : named(workload, "aten::_grouped_mm")) {
    flops += op.flops;
  }
  EXPECT_EQ(flops, 9 * 2 * kTitanRows * kTitanHidden * kTitanInner);
}

// A token's K results times its K weights, in fp32: the gradient of the results is for each token a
// column of K numbers times a row of H.
TEST(TorchtitanExperts, WeightsOfTokensAreProductsInFp32) {
  for (const std::string mesh : {"", R"(, "mesh": {"shard": 4, "expert": 4})"}) {
    const Workload workload = titan_step(Program::kTorchtitan, mesh, 4);
    std::vector<Operator> products = named(workload, "aten::bmm");
    std::erase_if(products, [](const Operator& op) { return op.kind != OperatorKind::kGemm; });
    ASSERT_EQ(products.size(), 1U);
    EXPECT_EQ(products[0].phase, Phase::kBackward);
    EXPECT_EQ(products[0].dtype, DType::kF32);
    EXPECT_EQ(products[0].batch, kTitanTokens);
    EXPECT_EQ(products[0].m, kTitanPerToken);
    EXPECT_EQ(products[0].n, kTitanHidden);
    EXPECT_EQ(products[0].k, 1);
    EXPECT_EQ(products[0].written, kTitanRows * kTitanHidden * kWide);
  }
}

// all_to_all_single and copies to the host are in torchtitan's list of what selective checkpoints
// keep; others send the rows once more.
TEST(TorchtitanExperts, SelectiveCheckpointsKeepExchanges) {
  const std::string keys =
      R"(, "mesh": {"shard": 4, "expert": 4}, "activation_checkpointing": ["model.layers.0"])";
  for (const Program program : {Program::kTorchtitan, Program::kTorchtitan03}) {
    const auto repeated = [&](const std::string& saves) {
      const Workload workload = titan_step(program, keys + saves, 4);
      return std::ranges::count_if(workload.communications, [](const Communication& each) {
        return each.phase == Phase::kRecompute;
      });
    };
    EXPECT_EQ(repeated(""), 3);
    EXPECT_EQ(repeated(R"(, "checkpointing_saves": ["attention", "every_second_product"])"), 0);
    const Workload kept = titan_step(program, keys + R"(, "checkpointing_saves": ["products"])", 4);
    Bytes saved = 0, freed = 0;
    for (const Operator& op : named(kept, "_c10d_functional::wait_tensor")) {
      saved += op.saved;
      freed += op.frees;
      EXPECT_EQ(op.read + op.written + op.flops, 0);
    }
    EXPECT_EQ(saved, 2 * kTitanRows * kTitanHidden * kHalf);  // to the experts and back
    EXPECT_EQ(freed, saved);
  }
}

}  // namespace
}  // namespace shardlens::plan
