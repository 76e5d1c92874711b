#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include "core/model/step_workload.h"
#include "core/models/model.h"
#include "core/models/ops.h"
#include "core/plan/resolve.h"
#include "core/workload/workload.h"
#include "tests/support/case_name.h"

namespace shardlens::models {
namespace {

// {name, m, n, k} of every matrix product, in the order in which they run. The products of experts
// are one operator; how many rows each expert has is not planned.
using Gemm = std::tuple<std::string, int64_t, int64_t, int64_t>;
constexpr const char* kExperts = "shardlens::grouped_mm";
std::vector<Gemm>* g_seen = nullptr;
std::vector<std::string> g_own;  // names of the operators of the engine
bool g_in_experts = false;

std::unique_ptr<at::ObserverContext> observe(const at::RecordFunction& function) {
  const std::string name = function.name();
  const size_t first = name == "aten::addmm" ? 1 : 0;  // addmm's own first input is the bias
  if (g_seen != nullptr && name.starts_with("shardlens::")) {
    g_own.push_back(name);
  }
  if (g_seen != nullptr && name == kExperts) {
    g_seen->emplace_back(name, 0, 0, 0);
    g_in_experts = true;
  }
  if (g_seen != nullptr && !g_in_experts && (name == "aten::mm" || name == "aten::addmm")) {
    const auto inputs = function.inputs();
    const auto left = inputs[first].toTensor().sizes();
    const auto right = inputs[first + 1].toTensor().sizes();
    g_seen->emplace_back(name, left[0], right[1], left[1]);
  }
  return nullptr;
}

void leave(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
  if (std::string_view(function.name()) == kExperts) {
    g_in_experts = false;
  }
}

class GemmShapesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(GemmShapesTest, EqualTheWorkloads) {
  constexpr int64_t kGemmBatch = 2;
  constexpr int64_t kGemmSeq = 8;
  const auto config =
      plan::load_model_config(std::filesystem::path(SHARDLENS_TEST_DATA) / GetParam());
  const plan::ModuleTree tree = plan::module_tree(config);
  const auto workload =
      plan::step_workload(config, plan::resolve(plan::strategy_plan("full_shard", tree), tree, 2),
                          {.batch = kGemmBatch, .seq = kGemmSeq});
  std::vector<Gemm> planned;
  std::vector<std::string> planned_own;
  for (const plan::Operator& op : workload.operators) {
    if (op.name.starts_with("shardlens::")) {
      planned_own.push_back(op.name);
    }
    if (op.name == kExperts) {
      planned.emplace_back(op.name, 0, 0, 0);
    } else if (op.kind == plan::OperatorKind::kGemm) {
      planned.emplace_back(op.name, op.m, op.n, op.k);
    }
  }

  const auto model = make_model(config, Init::kRandom);
  std::vector<Gemm> seen;
  g_seen = &seen;
  g_own.clear();
  const auto handle = at::addGlobalCallback(at::RecordFunctionCallback(observe, leave)
                                                .needsInputs(true)
                                                .scopes({at::RecordScope::FUNCTION}));
  const at::Tensor logits = model->logits(at::zeros({kGemmBatch, kGemmSeq}, at::kLong));
  token_loss(logits.flatten(0, 1), at::zeros({kGemmBatch * kGemmSeq}, at::kLong)).backward();
  at::removeCallback(handle);
  g_seen = nullptr;

  EXPECT_GT(seen.size(), 3U);
  EXPECT_EQ(seen, planned);
  EXPECT_EQ(g_own, planned_own);
}

INSTANTIATE_TEST_SUITE_P(Models,
                         GemmShapesTest,
                         ::testing::Values("llama-tiny",
                                           "gpt2-tiny",
                                           "models/llama-untied",
                                           "models/llama-tied-gqa",
                                           "models/llama-biases",
                                           "models/llama-head-dim",
                                           "models/llama-rope-flat",
                                           "models/gpt2-tied",
                                           "models/gpt2-untied-inner",
                                           "models/mlp-untied",
                                           "models/mlp-tied",
                                           "mistral-tiny",
                                           "qwen2-tiny",
                                           "qwen3-tiny",
                                           "gemma2-tiny",
                                           "gemma3-tiny",
                                           "mixtral-tiny",
                                           "qwen3-moe-tiny"),
                         [](const auto& each) { return test::case_name(each.param); });

}  // namespace
}  // namespace shardlens::models
