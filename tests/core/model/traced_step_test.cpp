#include <algorithm>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/model/step_workload.h"
#include "core/plan/resolve.h"

namespace shardlens::plan {
namespace {

constexpr int64_t kTracedBatch = 2, kTracedSeq = 64, kTracedInner = 384, kTracedLayers = 2;

constexpr const char* kTracedLlama = R"({"model_type": "llama", "hidden_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 384,
    "num_hidden_layers": 2, "vocab_size": 512, "max_position_embeddings": 1024})";
constexpr const char* kTracedPlan = R"({"version": 1, "layout": "per_parameter",
    "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"})";

Workload traced_step(Program program,
                     const std::string& keys = "",
                     const Software& software = {},
                     const std::string& model = kTracedLlama) {
  const ModelConfig config = parse_model_config(model, "config.json");
  const ResolvedPlan plan =
      resolve(parse_plan(kTracedPlan + keys + "}", "plan.json"), module_tree(config), 4);
  return step_workload(
      config, plan,
      {.batch = kTracedBatch, .seq = kTracedSeq, .program = program, .software = software});
}

Bytes saved_by(const Workload& workload) {
  Bytes out = 0;
  for (const Operator& op : workload.operators) {
    out += op.saved;
  }
  return out;
}

int64_t count_of(const Workload& workload, std::string_view name, Phase phase) {
  return std::ranges::count_if(
      workload.operators, [&](const Operator& op) { return op.name == name && op.phase == phase; });
}

// min_cut_rematerialization_partition of torch 2.11 on two traced blocks of DeepSeek-V3 16B: of all
// that autograd keeps, only the results of aten.silu are computed again.
TEST(TracedStep, SimpleFsdpComputesActivationFunctionsAgain) {
  const Workload eager = traced_step(Program::kTorchtitan),
                 traced = traced_step(Program::kSimpleFsdp);
  constexpr Bytes kOfSilu = kTracedBatch * kTracedSeq * kTracedInner * 2;
  EXPECT_EQ(saved_by(eager) - saved_by(traced), kTracedLayers * kOfSilu);
  EXPECT_EQ(count_of(eager, "aten::silu", Phase::kBackward), 0);
  EXPECT_EQ(count_of(traced, "aten::silu", Phase::kBackward), kTracedLayers);
}

TEST(TracedStep, CheckpointsDecideWhereThereAreAny) {
  const std::string keys = R"(, "activation_checkpointing": ["model.layers.*"])";
  EXPECT_EQ(traced_step(Program::kSimpleFsdp, keys).operators,
            traced_step(Program::kTorchtitan, keys).operators);
}

TEST(TracedStep, GraphTrainerRunsTheOperatorsOf03) {
  const Workload graph = traced_step(Program::kGraphTrainer);
  EXPECT_EQ(graph.operators, traced_step(Program::kTorchtitan03).operators);
  EXPECT_EQ(graph.program, Program::kGraphTrainer);
  EXPECT_TRUE(software_by_default(Program::kGraphTrainer).cuda_graphs);
  EXPECT_FALSE(software_by_default(Program::kSimpleFsdp).cuda_graphs);
}

std::string refusal_of_traced(Program program,
                              const std::string& keys,
                              const Software& software = {}) {
  try {
    (void)traced_step(program, keys, software);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(TracedStep, RefusesWhatIsNotTraced) {
  EXPECT_EQ(refusal_of_traced(Program::kSimpleFsdp, "", {.compile = Compile::kBlock}),
            "config.json: compile block: SimpleFSDP traces the whole model; expected model, which "
            "inductor compiles, or none, which runs the traced operators");
  EXPECT_EQ(refusal_of_traced(Program::kSimpleFsdp, "", {.cuda_graphs = true}),
            "config.json: cuda_graphs: SimpleFSDP does not capture its graphs; expected no CUDA "
            "graphs, or --stack graph-trainer");
  EXPECT_EQ(refusal_of_traced(Program::kGraphTrainer, R"(, "cpu_offload": true)"),
            "plan.json#/units: unit '' has cpu_offload, which GraphTrainer does not have; expected "
            "units of fully_shard without it");
}

constexpr const char* kTracedLatent = R"({"model_type": "deepseek_v3", "hidden_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 256,
    "moe_intermediate_size": 64, "q_lora_rank": null, "kv_lora_rank": 64, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "num_hidden_layers": 2, "vocab_size": 512, "max_position_embeddings": 1024)";

// aten.index_put is not in place: it clones what it writes to.
TEST(TracedStep, SimpleFsdpCopiesWhatItWritesTo) {
  const Workload eager =
                     traced_step(Program::kTorchtitan, "", {}, std::string(kTracedLatent) + "}"),
                 traced =
                     traced_step(Program::kSimpleFsdp, "", {}, std::string(kTracedLatent) + "}");
  const auto moved = [](const Workload& workload) {
    Bytes read = 0, written = 0;
    for (const Operator& op : workload.operators) {
      const bool puts = op.name.starts_with("aten::index_put");
      read += puts ? op.read : 0;
      written += puts ? op.written : 0;
    }
    return std::pair{read, written};
  };
  EXPECT_GT(moved(eager).second, 0);
  EXPECT_EQ(moved(traced).second, moved(eager).second);
  EXPECT_EQ(moved(traced).first - moved(eager).first, 2 * moved(eager).second);
}

// PyTorch's FlashAttention takes queries, keys and values of one size: torchtitan pull request
// 1610.
TEST(TracedStep, UnequalHeadsOfScaledDotProductAttentionRunTheEfficientKernel) {
  for (const auto& [key, name] : {std::pair{"", kFlexAttention},
                                  {R"(, "attn_implementation": "sdpa")", kEfficientAttention}}) {
    const Workload workload =
        traced_step(Program::kTorchtitan, "", {}, std::string(kTracedLatent) + key + "}");
    EXPECT_EQ(count_of(workload, name, Phase::kForward), 2) << name;
    EXPECT_EQ(count_of(workload, std::string(name) + "_backward", Phase::kBackward), 2) << name;
  }
}

}  // namespace
}  // namespace shardlens::plan
