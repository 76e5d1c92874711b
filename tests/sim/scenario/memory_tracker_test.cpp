#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/plan/held_ranges.h"
#include "core/plan/resolve.h"
#include "sim/scenario/scenario.h"

namespace shardlens::sim {
namespace {

using nlohmann::json;

// What PyTorch's own FSDPMemTracker found (tests/tools/memory_tracker.py), never written by
// Shardlens.
const json& tracker_results() {
  static const json kRecorded =
      json::parse(std::ifstream(std::string(SHARDLENS_TEST_DATA) + "/memory_tracker.json"));
  return kRecorded;
}

Scenario scenario_of(const json& row) {
  Scenario out;
  out.model = std::make_shared<const ScenarioModel>(
      plan::parse_model_config(row["config"].dump(), "config.json"));
  out.plan = plan::parse_plan(row["plan"].dump(), "plan.json");
  out.world_size = row["world"];
  out.step = {.batch = row["batch"], .seq = row["seq"].get<int64_t>()};
  out.step.program = plan::Program::kTransformers;
  out.step.optimizer = row["optimizer"] == "sgd" ? plan::Optimizer::kSgd : plan::Optimizer::kAdamW;
  out.step.optimizer_impl =
      row["optimizer"] == "fused" ? plan::OptimizerImpl::kFused : plan::OptimizerImpl::kForeach;
  HardwareSpec hardware = load_hardware("8xH200");
  hardware.nodes = std::max<int64_t>(1, out.world_size / hardware.gpus);
  out.machine = std::make_shared<const TargetMachine>(std::move(hardware));
  return out;
}

// What rank 0 keeps between steps, in fp32: its parameters, their gradients, AdamW's two moments or
// SGD's momentum.
TEST(MemoryTracker, StatesAreEqual) {
  for (const auto& [name, row] : tracker_results()["rows"].items()) {
    const Scenario scenario = scenario_of(row);
    const plan::ResolvedPlan plan =
        plan::resolve(scenario.plan, scenario.model->tree(), scenario.world_size);
    int64_t held = 0;
    for (UnitId unit = 0; unit < plan.units.size(); ++unit) {
      const plan::ShardLayout layout = plan.layout(unit);
      for (size_t i = 0; i < plan.units[unit].parameters.size(); ++i) {
        for (const plan::HeldRange& range : plan::held_ranges(layout, plan.world_size, i)) {
          held += range.ranks.first == 0 ? range.end - range.begin : 0;
        }
      }
    }
    const json& tracked = row["tracked"];
    EXPECT_EQ(held * 4, tracked["parameters"]) << name;
    EXPECT_EQ(held * 4, tracked["gradients"]) << name;
    EXPECT_EQ(held * 4 * scenario.step.optimizer_states(), tracked["optimizer"]) << name;
  }
}

TEST(MemoryTracker, PeaksAreWithinThreePercent) {
  std::vector<double> errors;
  for (const auto& [name, row] : tracker_results()["rows"].items()) {
    const Prediction predicted = evaluate(scenario_of(row));
    const double error = static_cast<double>(predicted.memory.peak_requested) /
                             row["tracked"]["peak"].get<double>() -
                         1;
    errors.push_back(std::abs(error));
    EXPECT_LT(std::abs(error), 0.05) << name;
  }
  ASSERT_GE(errors.size(), 60U);
  std::sort(errors.begin(), errors.end());
  EXPECT_LT(errors[errors.size() / 2], 0.03);
  EXPECT_LT(errors[static_cast<size_t>(std::ceil(0.95 * static_cast<double>(errors.size()))) - 1],
            0.10);
}

}  // namespace
}  // namespace shardlens::sim
