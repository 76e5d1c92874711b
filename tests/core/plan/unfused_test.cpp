#include "core/plan/unfused.h"

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

// The loss comes after the root, in its own phase, and keeps the fp32 result of log-softmax.
TEST(UnfusedTest, TheLossKeepsOneFp32Logit) {
  const ModelConfig config =
      load_model_config(std::string(SHARDLENS_TEST_DATA) + "/models/llama-untied");
  Bytes saved = 0;
  for (const Operator& op : llama(Program::kTransformers).operators) {
    saved += op.phase == Phase::kLoss ? op.saved : 0;
  }
  EXPECT_EQ(saved, 2 * 8 * (4 * config.vocab_size + 2 * 4));
}

}  // namespace
}  // namespace shardlens::plan
