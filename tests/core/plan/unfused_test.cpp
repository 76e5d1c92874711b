#include "core/plan/unfused.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/plan/resolve.h"
#include "core/plan/workload.h"

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
  const ResolvedPlan plan =
      resolve(parse_plan(R"({"version": 1})", "plan.json"), module_tree(config), 2);
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

}  // namespace
}  // namespace shardlens::plan
