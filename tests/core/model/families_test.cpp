#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/model/step_workload.h"
#include "core/plan/ownership.h"
#include "core/plan/resolve.h"
#include "core/workload/workload.h"
#include "tests/support/case_name.h"

namespace shardlens::plan {
namespace {

using nlohmann::json;

json family_data(const std::string& name) {
  json out;
  std::ifstream(std::string(SHARDLENS_TEST_DATA) + "/families/" + name) >> out;
  return out;
}

// FNV-1a with 64 bits over lines.
class LineHash {
 public:
  void add(const std::string& line) {
    for (const char each : line + "\n") {
      value_ = (value_ ^ static_cast<unsigned char>(each)) * 0x100000001b3ULL;
    }
  }
  [[nodiscard]] std::string text() const { return fmt::format("{:016x}", value_); }

 private:
  uint64_t value_ = 0xcbf29ce484222325ULL;
};

// Models of public configs at full size, compared with what transformers builds from the same
// values, fully_shard places, and FlopCounterMode counts (tests/tools/model_families.py).
class FamiliesTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    expected_ = family_data("expected.json").at(GetParam());
    config_ = parse_model_config(family_data("configs.json").at(GetParam()).dump(), "config.json");
    tree_ = module_tree(config_);
  }

  json expected_;
  ModelConfig config_;
  ModuleTree tree_;
};

TEST_P(FamiliesTest, HasTheParametersAndModulesOfTransformers) {
  LineHash names, modules;
  int64_t numel = 0;
  json tied = json::object();
  for (const Parameter& parameter : tree_.parameters) {
    std::string shape;
    for (const int64_t size : parameter.shape) {
      shape += (shape.empty() ? "" : "x") + std::to_string(size);
    }
    names.add(parameter.fqn + " " + shape);
    numel += parameter.numel;
    if (!parameter.aliases.empty()) {
      tied[parameter.fqn] = parameter.aliases;
    }
  }
  for (const Module& module : tree_.modules) {
    modules.add(module.fqn + " " + module.type);
  }
  EXPECT_EQ(config_.torch_type, expected_["class"]);
  EXPECT_EQ(numel, expected_["parameters"]);
  EXPECT_EQ(tree_.parameters.size(), expected_["tensors"]);
  EXPECT_EQ(tied, expected_["tied"]);
  EXPECT_EQ(names.text(), expected_["names"]);
  EXPECT_EQ(modules.text(), expected_["modules"]);
}

TEST_P(FamiliesTest, EachRankHasTheBytesThatFullyShardPlaces) {
  const std::vector<int64_t> bytes = expected_["rank_bytes"];
  const auto ranks = static_cast<int64_t>(bytes.size());
  const ResolvedPlan plan = resolve(
      parse_plan(R"({"version": 1, "layout": "per_parameter"})", "plan.json"), tree_, ranks);
  std::vector<int64_t> found(bytes.size());
  const Ownership ownership(plan);
  for (const ParameterPlace& place : parameter_places(plan)) {
    for (const HeldPart& part : ownership.parts(place)) {
      for (int64_t i = 0; i < part.ranks.size(); ++i) {
        found[static_cast<size_t>(part.ranks.at(i))] += part.numel() * size_of(DType::kF32);
      }
    }
  }
  EXPECT_EQ(found, bytes);
}

// Batch 1 and 64 tokens; attention is not counted.
TEST_P(FamiliesTest, ProductsHaveTheFlopsOfFlopCounterMode) {
  const ResolvedPlan plan = resolve(parse_plan(R"({"version": 1})", "plan.json"), tree_, 8);
  const Workload workload = step_workload(config_, plan, {.batch = 1, .seq = 64});
  int64_t forward = 0, backward = 0;
  for (const Operator& op : workload.operators) {
    if (op.kind == OperatorKind::kGemm) {
      (op.phase == Phase::kForward ? forward : backward) += op.flops;
    }
  }
  EXPECT_EQ(forward, expected_["forward_flops"]);
  EXPECT_EQ(backward, expected_["backward_flops"]);
}

std::vector<std::string> names_of_models() {
  const json models = family_data("expected.json");
  std::vector<std::string> out;
  for (const auto& each : models.items()) {
    out.push_back(each.key());
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Transformers,
                         FamiliesTest,
                         testing::ValuesIn(names_of_models()),
                         [](const auto& each) { return test::case_name(each.param); });

}  // namespace
}  // namespace shardlens::plan
