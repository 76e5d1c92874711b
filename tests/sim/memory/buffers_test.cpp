// The buffers of sharding at the peak equal those that tests/engine/memory_test.cpp counts in the
// engine, allocation by allocation: the same model, plans and counts.
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/plan/resolve.h"
#include "core/workload/workload_builder.h"
#include "sim/memory/peak_memory.h"

namespace shardlens::sim::test {
namespace {

constexpr int64_t kWidth = 256, kRows = 2;

struct Model {
  plan::ModuleTree tree;

  uint32_t module(const std::string& fqn, uint32_t parent) {
    const auto index = static_cast<uint32_t>(tree.modules.size());
    plan::Module& made = tree.modules.emplace_back();
    made.fqn = fqn;
    made.type = "Linear";
    made.parent = parent;
    if (index > 0) {
      tree.modules[parent].children.push_back(index);
    }
    return index;
  }
  void linear(const std::string& fqn, uint32_t parent, int64_t in, int64_t out) {
    const uint32_t of = module(fqn, parent);
    for (const auto& [name, shape] : {std::pair{".weight", std::vector<int64_t>{out, in}},
                                      std::pair{".bias", std::vector<int64_t>{out}}}) {
      tree.modules[of].parameters.push_back(static_cast<uint32_t>(tree.parameters.size()));
      plan::Parameter& made = tree.parameters.emplace_back();
      made.fqn = fqn + name;
      made.shape = shape;
      made.numel = shape.size() == 2 ? out * in : out;
      made.module = of;
    }
  }
};

// Three links, each a linear up and one down, between the root's own.
Model links() {
  Model model;
  model.module("", 0);
  model.linear("input", 0, kWidth, kWidth);
  const uint32_t layers = model.module("layers", 0);
  for (int i = 0; i < 3; ++i) {
    const std::string fqn = "layers." + std::to_string(i);
    const uint32_t link = model.module(fqn, layers);
    model.tree.blocks.push_back(link);
    model.linear(fqn + ".up", link, kWidth, kWidth + 2);
    model.linear(fqn + ".down", link, kWidth + 2, kWidth);
  }
  model.linear("output", 0, kWidth, kWidth);
  return model;
}

plan::Workload workload_of(const plan::ResolvedPlan& plan) {
  plan::WorkloadBuilder build(plan, 1, kRows);
  const auto linear = [&build](const std::string& fqn, int64_t in, int64_t out) {
    build.enter(fqn);
    build.linear({.in = in, .out = out, .bias = true});
    build.leave();
  };
  build.enter("");
  linear("input", kWidth, kWidth);
  for (int i = 0; i < 3; ++i) {
    const std::string fqn = "layers." + std::to_string(i);
    build.enter(fqn);
    linear(fqn + ".up", kWidth, kWidth + 2);
    build.activation("relu", kWidth + 2);
    linear(fqn + ".down", kWidth + 2, kWidth);
    build.leave();
  }
  linear("output", kWidth, kWidth);
  build.leave();
  build.loss(kWidth);
  build.finish_backward();
  build.optimizer({});
  return build.take();
}

struct Case {
  std::string keys;
  double blocks = 0;  // in addition to the shards and 1.5 times the root; see memory_test.cpp
};

const Case kCases[] = {
    {R"("layout": "per_parameter", "reshard_after_forward": true)", 4.5},
    {R"("layout": "per_parameter")", 4.5},
    {R"("layout": "per_parameter", "forward_prefetch": 1)", 4.5},
    {R"("layout": "per_parameter", "reshard_after_forward": false)", 4.5},
    {R"("layout": "flat")", 4.5},
    {R"("layout": "flat", "limit_all_gathers": false)", 4.5},
    {R"("layout": "flat", "forward_prefetch": 1)", 4.5},
    {R"("layout": "flat", "reshard_after_forward": false)", 4.5},
    {R"("dialect": "fsdp1")", 4},
    {R"("dialect": "fsdp1", "limit_all_gathers": false)", 4},
    {R"("dialect": "fsdp1", "reshard_after_forward": false)", 4.5},
};

TEST(BuffersTest, PeakIsThatOfTheEngine) {
  const Model model = links();
  for (const Case& test : kCases) {
    SCOPED_TRACE(test.keys);
    const plan::Plan plan = plan::parse_plan(
        R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], )" + test.keys + "}",
        "plan.json");
    const plan::ResolvedPlan resolved = plan::resolve(plan, model.tree, 2);
    const plan::Workload workload = workload_of(resolved);
    const schedule::PlannedStep step = schedule::planned_step(workload, resolved);
    MemoryOptions options;
    options.capacity = Bytes{1} << 40;
    const StepMemory memory =
        step_memory(PricedStep::borrowed(workload, resolved, step, {}), options);
    const auto bytes = [&](UnitId unit) {
      return 4.0 * static_cast<double>(resolved.layout(unit).padded_numel());
    };
    const double block = bytes(1), root = bytes(0), shard = (3 * block + root) / 2;
    const auto of = [&memory](MemoryCategory category) {
      return static_cast<double>(memory.at_peak[static_cast<size_t>(category)]);
    };
    const double slack = 0.05 * block;  // biases, rounding
    EXPECT_NEAR(of(MemoryCategory::kParameters), shard, slack);
    EXPECT_NEAR(of(MemoryCategory::kOptimizer), 2 * shard, slack);
    EXPECT_NEAR(of(MemoryCategory::kUnsharded) + of(MemoryCategory::kGradients) +
                    of(MemoryCategory::kCommunication),
                test.blocks * block + 1.5 * root, slack);
    EXPECT_NEAR(static_cast<double>(memory.peak_allocated),
                3 * shard + test.blocks * block + 1.5 * root, slack);
  }
}

}  // namespace
}  // namespace shardlens::sim::test
