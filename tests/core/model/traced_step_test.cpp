#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

constexpr const char* kTracedCheckpoints = R"(, "activation_checkpointing": ["model.layers.*"])";

// Nothing that backward reads comes from a block's last product and sum.
TEST(TracedStep, ComputesAgainWhatBackwardReads) {
  const Workload eager = traced_step(Program::kTorchtitan, kTracedCheckpoints),
                 traced = traced_step(Program::kSimpleFsdp, kTracedCheckpoints);
  EXPECT_EQ(saved_by(traced), saved_by(eager));
  EXPECT_EQ(count_of(eager, "aten::mm", Phase::kRecompute), 7 * kTracedLayers);
  EXPECT_EQ(count_of(traced, "aten::mm", Phase::kRecompute), 6 * kTracedLayers);
  EXPECT_EQ(count_of(eager, "aten::add", Phase::kRecompute), 2 * kTracedLayers);
  EXPECT_EQ(count_of(traced, "aten::add", Phase::kRecompute), kTracedLayers);
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

// The sum of the experts' results is a term of the block's result. Backward reads what they are
// weighed with, and them in fp32.
TEST(TracedStep, DoesNotAddUpTheResultsOfExpertsAgain) {
  const std::string model = std::string(kTracedLatent) + "}";
  const Workload eager = traced_step(Program::kTorchtitan03, kTracedCheckpoints, {}, model),
                 traced = traced_step(Program::kGraphTrainer, kTracedCheckpoints, {}, model);
  for (const std::string_view name :
       {"aten::zeros_like", "torchtitan::deterministic_scatter_add"}) {
    EXPECT_EQ(count_of(traced, name, Phase::kForward), count_of(eager, name, Phase::kForward));
    EXPECT_EQ(count_of(eager, name, Phase::kRecompute), 1) << name;
    EXPECT_EQ(count_of(traced, name, Phase::kRecompute), 0) << name;
  }
  EXPECT_EQ(saved_by(traced), saved_by(eager));
}

// _make_eager_memory_policy of its memory_policy.py, by hand: the router's product is the fifth of
// a block with experts, so that the shared experts' first is computed again and not the router's.
// The last is the second that is left out, but nothing reads its result.
TEST(TracedStep, GraphTrainerCountsTheProductOfTheRouter) {
  const std::string keys =
      std::string(kTracedCheckpoints) + R"(, "checkpointing_saves": ["every_second_product"])";
  const auto again = [&](Program program) {
    std::vector<std::string> out;
    for (const Operator& op :
         traced_step(program, keys, {}, std::string(kTracedLatent) + "}").operators) {
      if (op.phase == Phase::kRecompute && op.name == "aten::mm" && op.flops > 0 &&
          op.module.starts_with("model.layers.1.")) {
        out.push_back(op.module.substr(std::string_view("model.layers.1.").size()));
      }
    }
    return out;
  };
  const std::string shared = "mlp.shared_experts.";
  EXPECT_EQ(again(Program::kTorchtitan03),
            (std::vector<std::string>{"self_attn.kv_a_proj_with_mqa", "self_attn.o_proj",
                                      "mlp.gate", shared + "up_proj"}));
  EXPECT_EQ(again(Program::kGraphTrainer),
            (std::vector<std::string>{"self_attn.kv_a_proj_with_mqa", "self_attn.o_proj",
                                      shared + "gate_proj"}));
}

TEST(TracedStep, GradientsOfAGraphTakeThePlacesOfThoseBefore) {
  const Software graphs{.cuda_graphs = true};
  const auto zeroes = [&](Program program) {
    return count_of(traced_step(program, "", graphs), "aten::_foreach_zero_", Phase::kOptimizer);
  };
  EXPECT_EQ(zeroes(Program::kTorchtitan03), 1);
  EXPECT_EQ(zeroes(Program::kGraphTrainer), 0);
  EXPECT_TRUE(keeps_gradients(Program::kGraphTrainer, graphs));
}

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
