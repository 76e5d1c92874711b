#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/model/mesh_support.h"
#include "core/model/step_workload.h"
#include "core/plan/resolve.h"

namespace shardlens::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// gpt_oss as torchtitan has it. Two layers, the first with a window: H 64, 4 heads of 16, 8 experts
// of I 32, of which a token has K 2. T tokens, N = T·K rows, in bf16.
constexpr int64_t kOssHidden = 64, kOssHeads = 4, kOssHead = 16, kOssInner = 32, kOssExperts = 8,
                  kOssPerToken = 2, kOssBatch = 2, kOssSeq = 64, kOssWindow = 16,
                  kOssTokens = kOssBatch * kOssSeq, kOssRows = kOssTokens * kOssPerToken;
constexpr Bytes kBf16Bytes = 2, kF32Bytes = 4;

ModelConfig oss_model(const std::string& keys = "") {
  return parse_model_config(R"({"model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 32,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
      "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 16, "vocab_size": 256,
      "max_position_embeddings": 1024)" +
                                keys + "}",
                            "config.json");
}

Workload oss_step(Program program,
                  Compile compile = Compile::kNone,
                  const std::string& keys = "",
                  int64_t world = 2,
                  const ModelConfig& config = oss_model()) {
  const std::string text =
      R"({"version": 1, "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"})" +
      keys + "}";
  const ResolvedPlan plan = resolve(parse_plan(text, "plan.json"), module_tree(config), world);
  StepSettings settings{.batch = kOssBatch, .seq = kOssSeq, .program = program};
  settings.software.loss_chunks = 1;
  settings.software.compile = compile;
  require_mesh(config, plan, settings);
  return step_workload(config, plan, settings);
}

std::vector<Operator> oss_operators(const Workload& workload,
                                    const std::string& module,
                                    Phase phase) {
  std::vector<Operator> out;
  std::ranges::copy_if(workload.operators, std::back_inserter(out), [&](const Operator& op) {
    return op.module == module && op.phase == phase;
  });
  return out;
}

std::vector<std::string> oss_names(const std::vector<Operator>& operators) {
  std::vector<std::string> out;
  for (const Operator& each : operators) {
    const size_t colons = each.name.find("::");
    out.push_back(colons == std::string::npos ? each.name : each.name.substr(colons + 2));
  }
  return out;
}

// GptOssGroupedExperts and swiglu() of models/gpt_oss/moe.py, between the dispatcher's operators.
TEST(BiasedExperts, RunTheOperatorsOfTorchtitan) {
  const Workload workload = oss_step(Program::kTorchtitan03);
  const std::string module = "model.layers.0.mlp.experts";
  const std::vector<Operator> forward = oss_operators(workload, module, Phase::kForward);
  EXPECT_THAT(
      oss_names(forward),
      ElementsAre("index", "_grouped_mm", "repeat_interleave", "add", "clamp", "clamp", "mul",
                  "sigmoid", "mul", "add", "mul", "_grouped_mm", "repeat_interleave", "add",
                  "_to_copy", "mul", "_to_copy", "zeros_like", "deterministic_scatter_add"));
  EXPECT_EQ(forward[1].n, 2 * kOssInner);
  EXPECT_EQ(forward[2].written, kOssRows * 2 * kOssInner * kBf16Bytes);
  // Every second number of a row: the whole row is read.
  EXPECT_EQ(forward[4].read, kOssRows * 2 * kOssInner * kBf16Bytes);
  EXPECT_EQ(forward[4].written, kOssRows * kOssInner * kBf16Bytes);
  const std::vector<Operator> backward = oss_operators(workload, module, Phase::kBackward);
  EXPECT_THAT(oss_names(backward),
              ElementsAre("gather", "_to_copy", "mul", "mul", "sum", "_to_copy", "index_add",
                          "_grouped_mm", "_grouped_mm", "mul", "mul", "mul", "mul",
                          "sigmoid_backward", "mul", "add_", "ge", "le", "logical_and_", "where",
                          "le", "where", "slice_backward", "slice_backward", "add_", "index_add",
                          "_grouped_mm", "_grouped_mm", "new_zeros", "index_put"));
  EXPECT_EQ(backward[6].flops, kOssRows * kOssHidden);
  EXPECT_EQ(backward[25].flops, kOssRows * 2 * kOssInner);
  EXPECT_EQ(backward[25].written, kOssExperts * 2 * kOssInner * kBf16Bytes);
}

// FlexAttention in both layers, whose result is multiplied by a number for each row and head.
TEST(BiasedExperts, AttentionOfTorchtitanIsScaledBySinks) {
  for (const Program program : {Program::kTorchtitan, Program::kTorchtitan03}) {
    const Workload workload = oss_step(program);
    const std::vector<Operator> windowed =
        oss_operators(workload, "model.layers.0.self_attn", Phase::kForward);
    ASSERT_GE(windowed.size(), 5U);
    const auto end = windowed.end();
    EXPECT_THAT(oss_names({end - 5, end}),
                ElementsAre("flex_attention", "sub", "sigmoid", "_to_copy", "mul"));
    const Operator& attention = *(end - 5);
    EXPECT_EQ(attention.n, kOssWindow * (2 * kOssSeq - kOssWindow) / kOssSeq);
    EXPECT_EQ((end - 1)->written, kOssTokens * kOssHeads * kOssHead * kBf16Bytes);
    EXPECT_EQ((end - 1)->saved, kOssTokens * kOssHeads * (kF32Bytes + kBf16Bytes));
    const std::vector<Operator> whole =
        oss_operators(workload, "model.layers.1.self_attn", Phase::kForward);
    EXPECT_EQ((whole.end() - 5)->n, kOssSeq);
    // Not attention's result, so it is saved once more.
    const Operator product =
        oss_operators(workload, "model.layers.0.self_attn.o_proj", Phase::kForward).at(0);
    EXPECT_EQ(product.name, "aten::addmm");
    EXPECT_EQ(product.saved, kOssTokens * kOssHeads * kOssHead * kBf16Bytes);
    const std::vector<Operator> backward =
        oss_operators(workload, "model.layers.0.self_attn", Phase::kBackward);
    EXPECT_THAT(oss_names({backward.begin(), backward.begin() + 8}),
                ElementsAre("mul", "sum", "_to_copy", "sigmoid_backward", "neg", "sum", "mul",
                            "flex_attention_backward"));
  }
}

// What inductor of torch 2.15 schedules of such a block (tests/tools/inductor_experts.py): the
// biases are added where the results of products are read, and their gradients remain an operator
// of ATen.
TEST(BiasedExperts, CompiledOnesAreFused) {
  const Workload workload = oss_step(Program::kTorchtitan03, Compile::kBlock);
  const std::string module = "model.layers.0.mlp.experts";
  const std::vector<Operator> forward = oss_operators(workload, module, Phase::kForward);
  EXPECT_THAT(oss_names(forward),
              ElementsAre("index", "_grouped_mm", "triton_poi_fused_clamp_mul", "_grouped_mm",
                          "triton_poi_fused_mul", "zeros_like", "deterministic_scatter_add"));
  constexpr Bytes kNumbers = kOssRows * kOssInner * kBf16Bytes;
  EXPECT_EQ(forward[2].read, 2 * kNumbers);
  EXPECT_EQ(forward[2].written, kNumbers);
  const std::vector<Operator> backward = oss_operators(workload, module, Phase::kBackward);
  EXPECT_THAT(
      oss_names(backward),
      ElementsAre("triton_poi_fused_gather_mul", "triton_red_fused_gather_mul_sum", "index_add",
                  "_grouped_mm", "_grouped_mm", "triton_poi_fused_clamp_mul_backward",
                  "triton_poi_fused_clamp_slice_backward", "index_add", "_grouped_mm",
                  "_grouped_mm", "new_zeros", "index_put"));
  const std::vector<Operator> attention =
      oss_operators(workload, "model.layers.0.self_attn", Phase::kForward);
  EXPECT_EQ(attention.back().name, "triton_poi_fused_mul_sigmoid_sub");
}

TEST(BiasedExperts, AreDividedOverRanks) {
  const std::string mesh = R"(, "mesh": {"shard": 4, "expert": 4})";
  int64_t flops = 0;
  for (const Operator& op : oss_step(Program::kTorchtitan03, Compile::kNone, mesh, 4).operators) {
    flops += op.name == kGroupedProduct ? op.flops : 0;
  }
  // Two layers; forward and two gradients of products [H, 2I] and [I, H].
  EXPECT_EQ(flops, 2 * 3 * 2 * kOssRows * 3 * kOssHidden * kOssInner);
  EXPECT_FALSE(oss_step(Program::kTorchtitan, Compile::kNone, mesh, 4).operators.empty());
}

std::string oss_refusal(const std::string& keys,
                        int64_t world = 2,
                        const ModelConfig& config = oss_model(),
                        Compile compile = Compile::kNone) {
  try {
    (void)oss_step(Program::kTorchtitan03, compile, keys, world, config);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(BiasedExperts, WhatIsNotDescribedIsRefused) {
  EXPECT_THAT(oss_refusal(R"(, "mesh": {"shard": 2, "context": 2})", 4),
              HasSubstr("attention with windows, sinks or capped scores is not simulated on parts "
                        "of a sequence"));
  for (const char* mesh : {R"(, "mesh": {"shard": 2, "tensor": 2})",
                           R"(, "mesh": {"shard": 2, "tensor": 2, "expert": 2})"}) {
    EXPECT_THAT(oss_refusal(mesh, 4),
                HasSubstr("layers of GptOssForCausalLM are not simulated in parts yet"));
  }
  EXPECT_THAT(
      oss_refusal(R"(, "mesh": {"shard": 4, "expert": 4})", 4, oss_model(), Compile::kBlock),
      HasSubstr("--compile"));
  EXPECT_THAT(oss_refusal("", 2, oss_model(R"(, "attention_bias": false)")),
              HasSubstr("torchtitan: the linear layers of its gpt_oss have biases"));
}

// transformers with FlashAttention 3 or 4: one kernel for scores, sinks and windows. A token of
// the first layer attends to 16 tokens, but to fewer at the start: 16 · (2 · 64 - 16) / 64 = 28
// keys a row, of which the causal half counts elsewhere; two products of 16 numbers a head.
TEST(BiasedExperts, FlashAttentionOfTransformersTakesSinks) {
  const auto attention = [](const std::string& keys, const std::string& layer) {
    return oss_operators(oss_step(Program::kTransformers, Compile::kNone, "", 2, oss_model(keys)),
                         "model.layers." + layer + ".self_attn", Phase::kForward);
  };
  const auto has = [](const std::vector<Operator>& operators, std::string_view name) {
    return std::ranges::any_of(
        operators, [&](const Operator& op) { return op.name.find(name) != std::string::npos; });
  };
  EXPECT_TRUE(has(attention("", "0"), "softmax"));
  for (const char* kernel : {"kernels-community/vllm-flash-attn3", "flash_attention_4"}) {
    const std::string key = R"(, "attn_implementation": ")" + std::string(kernel) + '"';
    for (const auto& [layer, keys] : {std::pair{"0", 28}, {"1", 64}}) {
      const std::vector<Operator> operators = attention(key, layer);
      EXPECT_FALSE(has(operators, "softmax"));
      const auto found = std::ranges::find(operators, OperatorKind::kAttention, &Operator::kind);
      ASSERT_NE(found, operators.end());
      EXPECT_EQ(found->flops, 2 * 2 * kOssBatch * kOssHeads * kOssSeq * keys * kOssHead);
      EXPECT_EQ(found->name, "aten::scaled_dot_product_attention");
    }
  }
}

}  // namespace
}  // namespace shardlens::plan
