#include "core/workload/unfused.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/model/step_workload.h"
#include "core/plan/resolve.h"
#include "core/workload/workload.h"

namespace shardlens::plan {
namespace {

Workload llama(Program program) {
  const ModelConfig config =
      load_model_config(std::string(SHARDLENS_TEST_DATA) + "/models/llama-untied");
  const ResolvedPlan plan = resolve(
      parse_plan(R"({"version": 1, "mixed_precision": {"param_dtype": "bf16"}})", "plan.json"),
      module_tree(config), 2);
  return step_workload(config, plan, {.batch = 2, .seq = 8, .program = program});
}

// LlamaRMSNorm keeps x in fp32, and x · rsqrt in bf16, besides the fp32 rsqrt of each row: 4 + 2
// bytes an element. The engine's norm keeps x in bf16.
TEST(UnfusedTest, NormsOfTransformersKeepThreeTimesAsMuch) {
  const ModelConfig config =
      load_model_config(std::string(SHARDLENS_TEST_DATA) + "/models/llama-untied");
  const auto kept = [](const Workload& workload) {
    Bytes out = 0;
    for (const Operator& op : workload.operators) {
      out += op.module == "model.norm" ? op.saved : 0;
    }
    return out;
  };
  const int64_t rows = 2 * 8;
  EXPECT_EQ(kept(llama(Program::kEngine)), rows * (2 * config.hidden_size + 4));
  EXPECT_EQ(kept(llama(Program::kTransformers)), rows * (6 * config.hidden_size + 4));
}

// Only what is between the products is another.
TEST(UnfusedTest, ProductsAreThoseOfTheEngine) {
  const auto products = [](const Workload& workload) {
    std::vector<Operator> out;
    for (Operator op : workload.operators) {
      if (op.kind == OperatorKind::kGemm || op.kind == OperatorKind::kAttention) {
        op.forward = op.forward < 0 ? -1 : 0;  // other operators lie between
        out.push_back(op);
      }
    }
    return out;
  };
  const Workload engine = llama(Program::kEngine), transformers = llama(Program::kTransformers);
  EXPECT_EQ(products(transformers), products(engine));
  EXPECT_GT(transformers.operators.size(), engine.operators.size());
}

// In bf16, and on a GPU, the engine runs the operators of transformers between the products, except
// that nothing is transposed (no aten::clone) and the loss is one operator; in fp32 on a CPU it
// fuses them.
TEST(UnfusedTest, TheEngineFusesFp32OnACpuOnly) {
  const auto names = [](const Workload& workload) {
    std::multiset<std::string> out;
    for (const Operator& op : workload.operators) {
      out.insert(op.name);
    }
    return out;
  };
  const auto of = [&](Program program, const std::string& dtype) {
    const ModelConfig config =
        load_model_config(std::string(SHARDLENS_TEST_DATA) + "/models/llama-untied");
    const ResolvedPlan plan = resolve(
        parse_plan(R"({"version": 1, "mixed_precision": {"param_dtype": ")" + dtype + R"("}})",
                   "plan.json"),
        module_tree(config), 2);
    return names(step_workload(config, plan, {.batch = 2, .seq = 8, .program = program}));
  };
  EXPECT_EQ(of(Program::kEngineOnCpu, "fp32"), of(Program::kEngine, "fp32"));
  EXPECT_EQ(of(Program::kEngineOnCpu, "bf16"), of(Program::kEngineOnGpu, "bf16"));
  const auto gpu = of(Program::kEngineOnGpu, "bf16");
  EXPECT_EQ(gpu.count("shardlens::rms_norm") + gpu.count("shardlens::rotary") +
                gpu.count("shardlens::silu_multiply"),
            0U);
  EXPECT_EQ(gpu.count("aten::cross_entropy_loss"), 1U);
  auto transformers = of(Program::kTransformers, "bf16");
  for (const char* name : {"aten::rsqrt", "aten::silu", "aten::silu_backward", "aten::neg",
                           "aten::cat", "aten::pow", "aten::slice_backward"}) {
    EXPECT_EQ(gpu.count(name), transformers.count(name)) << name;
    EXPECT_GT(gpu.count(name), 0U) << name;
  }
  EXPECT_GT(of(Program::kEngineOnGpu, "fp32").count("aten::rsqrt"), 0U);
}

// apply_rotary_emb of torchtitan 0.3.0 in models/common/rope.py, of halves: queries and keys are
// converted to fp32, multiplied, rotated, multiplied, added and converted back, 52 bytes an
// element.
TEST(UnfusedTest, Torchtitan03RotatesHalvesInFp32) {
  const ModelConfig config = parse_model_config(
      R"({"model_type": "qwen3", "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16,
          "num_key_value_heads": 2, "intermediate_size": 96, "num_hidden_layers": 1,
          "vocab_size": 128, "max_position_embeddings": 64, "tie_word_embeddings": false})",
      "config.json");
  const ResolvedPlan plan = resolve(
      parse_plan(R"({"version": 1, "mixed_precision": {"param_dtype": "bf16"}})", "plan.json"),
      module_tree(config), 2);
  const auto moved = [&](Program program) {
    Bytes forward = 0, backward = 0;
    for (const Operator& op :
         step_workload(config, plan, {.batch = 2, .seq = 8, .program = program}).operators) {
      if (op.kind == OperatorKind::kElementwise && op.module == "model.layers.0.self_attn") {
        (op.phase == Phase::kBackward ? backward : forward) += op.read + op.written;
      }
    }
    return std::pair(forward, backward);
  };
  const Bytes rotated = 2 * 8 * (4 + 2) * 16;
  const Bytes copied = 2 * 8 * (4 + 2 + 2) * 16 * 2 * 2;  // of one product
  const auto [forward, backward] = moved(Program::kTorchtitan03);
  EXPECT_EQ(forward, 52 * rotated + copied);
  EXPECT_GE(backward, 68 * rotated);
  EXPECT_EQ(moved(Program::kTorchtitan).first, 20 * rotated);
}

// What was captured is known again when the file is read.
TEST(UnfusedTest, TheProgramIsInTheFile) {
  const ModelConfig config =
      load_model_config(std::string(SHARDLENS_TEST_DATA) + "/models/llama-untied");
  ResolvedPlan plan = resolve(parse_plan(R"({"version": 1})", "plan.json"), module_tree(config), 2);
  for (const Program program :
       {Program::kEngine, Program::kEngineOnCpu, Program::kEngineOnGpu, Program::kTransformers,
        Program::kTorchtitan, Program::kTorchtitan2024}) {
    const Workload workload =
        step_workload(config, plan, {.batch = 2, .seq = 8, .program = program});
    const Workload read = parse_workload(to_json(workload, plan), "workload.json", plan);
    EXPECT_EQ(read.program, program);
    EXPECT_EQ(read, workload);
  }
}

// The loss has its own phase and keeps the fp32 result of log-softmax.
TEST(UnfusedTest, TheLossKeepsOneFp32Logit) {
  const ModelConfig config =
      load_model_config(std::string(SHARDLENS_TEST_DATA) + "/models/llama-untied");
  Bytes saved = 0;
  for (const Operator& op : llama(Program::kTransformers).operators) {
    saved += op.phase == Phase::kLoss ? op.saved : 0;
  }
  EXPECT_EQ(saved, 2 * 8 * (4 * config.vocab_size + 2 * 4));
}

// The models of transformers return the loss, so that the backward of their root begins with it.
TEST(UnfusedTest, TheLossIsInTheModel) {
  const Workload workload = llama(Program::kTransformers);
  const auto at = [&](auto matches) {
    return std::ranges::find_if(workload.order, matches) - workload.order.begin();
  };
  const auto root_backward = at([&](const WorkloadItem& item) {
    return item.kind == WorkloadItem::Kind::kHook &&
           workload.hooks[item.index].hook == Hook::kPreBackward &&
           workload.hooks[item.index].unit == 0;
  });
  const auto loss_backward = at([&](const WorkloadItem& item) {
    return item.kind == WorkloadItem::Kind::kOperator &&
           workload.operators[item.index].name == "aten::nll_loss_backward";
  });
  EXPECT_LT(root_backward, loss_backward);
}

// In fp32 there is nothing to convert, and what follows takes from what came before.
TEST(UnfusedTest, Fp32HasNoConversions) {
  const ModelConfig config =
      load_model_config(std::string(SHARDLENS_TEST_DATA) + "/models/llama-untied");
  ResolvedPlan plan = resolve(parse_plan(R"({"version": 1})", "plan.json"), module_tree(config), 2);
  const Workload workload =
      step_workload(config, plan, {.batch = 2, .seq = 8, .program = Program::kTransformers});
  for (size_t i = 0; i < workload.operators.size(); ++i) {
    const Operator& op = workload.operators[i];
    EXPECT_NE(op.name, "aten::_to_copy");
    if (op.module == "model.norm" && op.name == "aten::sum" && op.takes != takes_before(1)) {
      // grad · w, grad · normalized, sum; without the conversion the statistic's product is next.
      EXPECT_EQ(op.takes, takes_before(2));
    }
    if (op.module == "model.norm" && op.name == "aten::add_") {
      EXPECT_EQ(op.takes, takes_before(1) | takes_before(9));
    }
  }
}

// The scores of attention, 2 · heads · 8 · 8, in the memory of gemma2: tanh's result in bf16 and
// softmax's in fp32, and the probabilities in bf16 with copies of queries, keys and values.
TEST(UnfusedTest, EagerAttentionKeepsItsScores) {
  const ModelConfig config = parse_model_config(
      R"({"model_type": "gemma2", "hidden_size": 64, "intermediate_size": 96,
          "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 16, "vocab_size": 128, "max_position_embeddings": 32})",
      "test");
  const ResolvedPlan plan = resolve(
      parse_plan(R"({"version": 1, "mixed_precision": {"param_dtype": "bf16"}})", "plan.json"),
      module_tree(config), 2);
  const Workload workload =
      step_workload(config, plan, {.batch = 2, .seq = 8, .program = Program::kTransformers});
  Bytes kept = 0;
  for (const Operator& op : workload.operators) {
    const bool linear = op.name == "aten::mm";
    kept += op.module == "model.layers.0.self_attn" && !linear ? op.saved : 0;
  }
  const Bytes scores = 2 * 4 * 8 * 8, heads = 2 * 8 * 4 * 16;
  EXPECT_EQ(kept, scores * (2 + 4 + 2) + 3 * heads * 2);
}

// What shardlens::models::capped_attention allocated besides its results and what it saves, counted
// by an allocator around LibTorch's on a CPU (forward 442368 with an output of 32768, backward
// 739328 in fp32 and 829440 in bf16), and a copy of the gradient, which comes in the order of
// tokens.
TEST(UnfusedTest, CappedAttentionNeedsItsScores) {
  const ModelConfig config = parse_model_config(
      R"({"model_type": "gemma2", "hidden_size": 64, "intermediate_size": 96,
          "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 16, "vocab_size": 128, "max_position_embeddings": 64})",
      "test");
  const auto scratch = [&](const char* plan, Phase phase) {
    const ResolvedPlan resolved = resolve(parse_plan(plan, "plan.json"), module_tree(config), 2);
    Bytes out = 0;
    for (const Operator& op : step_workload(config, resolved, {.batch = 2, .seq = 64}).operators) {
      out += op.phase == phase ? op.scratch : 0;
    }
    return out;
  };
  const char* const bf16 = R"({"version": 1, "mixed_precision": {"param_dtype": "bf16"}})";
  EXPECT_EQ(scratch(R"({"version": 1})", Phase::kForward), 442368 - 32768);
  EXPECT_EQ(scratch(R"({"version": 1})", Phase::kBackward), 739328 + 32768);
  EXPECT_EQ(scratch(bf16, Phase::kBackward), 829440 + 16384);
}

// torchtitan's norms keep their input and a number for each row, and its queries and keys are
// rotated in fp32.
TEST(UnfusedTest, TorchtitanHasFusedNormsAndComplexRotations) {
  const ModelConfig config =
      load_model_config(std::string(SHARDLENS_TEST_DATA) + "/models/llama-untied");
  const Workload workload = llama(Program::kTorchtitan);
  Bytes kept = 0;
  int64_t wide = 0;
  for (const Operator& op : workload.operators) {
    kept += op.name == "aten::_fused_rms_norm" && op.module == "model.norm" ? op.saved : 0;
    wide += op.module == "model.layers.0.self_attn" && op.phase == Phase::kForward &&
                    op.name == "aten::mul"
                ? op.written
                : 0;
  }
  const int64_t rows = 2 * 8;
  EXPECT_EQ(kept, rows * (2 * config.hidden_size + 4));
  EXPECT_EQ(wide, rows * (config.heads + config.kv_heads) * config.head_dim * 4);
}

// ATen's rms_norm of before 2.9 on bf16, by hand: numbers of 2 bytes are read and numbers of 4 are
// written and read: cast 6, power 8, mean 4, product 8, product with the weights 8, cast 6. The
// fused kernel reads and writes 2 each. A compiled model has the same kernels in both, but for the
// loss, which torchtitan did not compile at that time.
TEST(UnfusedTest, NormsOfTorchtitan2024AreSeveralKernels) {
  const ModelConfig config =
      load_model_config(std::string(SHARDLENS_TEST_DATA) + "/models/llama-untied");
  const ResolvedPlan plan = resolve(
      parse_plan(R"({"version": 1, "mixed_precision": {"param_dtype": "bf16"}})", "plan.json"),
      module_tree(config), 2);
  const auto workload = [&](Program program, Compile compile) {
    return step_workload(
        config, plan, {.batch = 2, .seq = 8, .program = program, .software = {.compile = compile}});
  };
  const auto moved = [&](Program program) {
    Bytes out = 0;
    for (const Operator& op : workload(program, Compile::kNone).operators) {
      out += op.module == "model.norm" && op.phase == Phase::kForward ? op.read + op.written : 0;
    }
    return out;
  };
  const Bytes numbers = Bytes{2} * 8 * config.hidden_size, row = Bytes{2} * 8 * 4;
  // A number for each row: written by the mean, read and written twice, read by the product.
  EXPECT_EQ(moved(Program::kTorchtitan2024), 40 * numbers + 6 * row);
  EXPECT_EQ(moved(Program::kTorchtitan), 4 * numbers + 2 * config.hidden_size + row);
  const auto names = [&](Program program, Compile compile, bool of_loss) {
    std::vector<std::string> out;
    for (const Operator& op : workload(program, compile).operators) {
      if (op.phase == (of_loss ? Phase::kLoss : Phase::kForward)) {
        out.push_back(op.name);
      }
    }
    return out;
  };
  EXPECT_EQ(names(Program::kTorchtitan, Compile::kModel, false),
            names(Program::kTorchtitan2024, Compile::kModel, false));
  EXPECT_EQ(names(Program::kTorchtitan, Compile::kModel, true),
            std::vector<std::string>{"triton_red_fused_cross_entropy_loss"});
  EXPECT_EQ(names(Program::kTorchtitan2024, Compile::kModel, true),
            names(Program::kTorchtitan2024, Compile::kNone, true));
}

TEST(UnfusedTest, ModelsThatTorchtitanDoesNotHaveAreRefused) {
  const auto error_of = [](const char* json) -> std::string {
    const ModelConfig config = parse_model_config(json, "config.json");
    const ResolvedPlan plan =
        resolve(parse_plan(R"({"version": 1})", "plan.json"), module_tree(config), 2);
    try {
      static_cast<void>(
          step_workload(config, plan, {.batch = 1, .seq = 8, .program = Program::kTorchtitan}));
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of(R"({"model_type": "gpt2"})"),
            "config.json: torchtitan: its model of 'gpt2' is not described; known: llama, qwen3, "
            "qwen3_moe, gpt_oss, deepseek_v3");
  EXPECT_EQ(error_of(R"({"model_type": "llama", "attention_bias": true})"),
            "config.json: torchtitan: its linear layers have no biases");
}

// Products q, v, gate and down are the first, third, fifth and seventh of a block.
TEST(UnfusedTest, SelectiveCheckpointsRepeatWhatTheyDidNotKeep) {
  const ModelConfig config =
      load_model_config(std::string(SHARDLENS_TEST_DATA) + "/models/llama-untied");
  const auto repeated = [&](const std::string& saves) {
    const ResolvedPlan plan =
        resolve(parse_plan(R"({"version": 1, "activation_checkpointing": ["model.layers.0"],
                               "checkpointing_saves": )" +
                               saves + "}",
                           "plan.json"),
                module_tree(config), 2);
    std::string out;
    for (const Operator& op :
         step_workload(config, plan, {.batch = 2, .seq = 8, .program = Program::kTorchtitan})
             .operators) {
      const bool product = op.kind == OperatorKind::kGemm || op.kind == OperatorKind::kAttention;
      if (op.phase == Phase::kRecompute && product && op.flops > 0) {
        const std::string module = op.module.substr(std::string("model.layers.0").size());
        out += module.substr(module.rfind('.') + 1) + " ";
      }
    }
    return out;
  };
  EXPECT_EQ(repeated("[]"), "q_proj k_proj v_proj self_attn o_proj gate_proj up_proj down_proj ");
  EXPECT_EQ(repeated(R"(["attention", "every_second_product"])"), "k_proj o_proj up_proj ");
  EXPECT_EQ(repeated(R"(["products"])"), "self_attn ");
}

// The lists of operators whose results are kept have torch._scaled_mm, not torchao's
// nvfp4_mm_triton.
TEST(UnfusedTest, SelectiveCheckpointsRepeatProductsOf4Bits) {
  const ModelConfig config = parse_model_config(
      R"({"model_type": "llama", "vocab_size": 1024, "hidden_size": 256, "num_attention_heads": 4,
          "num_key_value_heads": 2, "intermediate_size": 512, "num_hidden_layers": 1,
          "max_position_embeddings": 128})",
      "config.json");
  const ResolvedPlan plan =
      resolve(parse_plan(R"({"version": 1, "mixed_precision": {"param_dtype": "bf16"},
                     "activation_checkpointing": ["model.layers.0"],
                     "checkpointing_saves": ["attention", "every_second_product"]})",
                         "plan.json"),
              module_tree(config), 2);
  const auto repeated = [&](MatmulDType dtype) {
    StepSettings step{.batch = 1, .seq = 128, .program = Program::kTorchtitan};
    step.software.matmul_dtype = dtype;
    std::string out;
    for (const Operator& op : step_workload(config, plan, step).operators) {
      const bool product = op.kind == OperatorKind::kGemm || op.kind == OperatorKind::kAttention;
      if (op.phase == Phase::kRecompute && product && op.flops > 0) {
        out += op.module.substr(op.module.rfind('.') + 1) + " ";
      }
    }
    return out;
  };
  EXPECT_EQ(repeated(MatmulDType::kMxfp8), "k_proj o_proj up_proj ");
  EXPECT_EQ(repeated(MatmulDType::kNvfp4),
            "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj ");
}

}  // namespace
}  // namespace shardlens::plan
