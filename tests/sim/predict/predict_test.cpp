#include "sim/predict/predict.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "sim/cost/gpu_cost_model.h"

namespace shardlens::sim {
namespace {

constexpr const char* kModel = R"({"model_type": "llama", "hidden_size": 1024,
  "intermediate_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 8,
  "vocab_size": 32000, "max_position_embeddings": 2048})";

struct Case {
  plan::ModelConfig config = plan::parse_model_config(kModel, "test");
  plan::ResolvedPlan plan;
  plan::Workload workload;
  HardwareSpec hardware = load_hardware("8xH100");

  explicit Case(std::string_view strategy = "full_shard", int64_t ranks = 8) {
    const plan::ModuleTree tree = plan::module_tree(config);
    plan = plan::resolve(plan::strategy_plan(strategy, tree), tree, ranks);
    workload = plan::step_workload(config, plan, 2, 1024);
  }
};

TEST(Predict, PartsSumToTheStepAndTokensFollow) {
  const Case of;
  const Prediction now = predict(of.workload, of.plan, of.hardware, {.accumulate = 3});
  EXPECT_EQ(now.busy.compute + now.busy.exposed_comm + now.busy.exposed_copy + now.busy.idle,
            now.step.duration);
  EXPECT_DOUBLE_EQ(now.tokens_per_s,
                   8.0 * 2 * 1024 * 3 / (static_cast<double>(now.step.duration) * 1e-9));
}

TEST(Predict, UtilizationIsOfTheFormulaInTheDocs) {
  const Case of;
  // Parameters by hand: embedding and head, four layers of q, k, v, o, three of the MLP, two norms,
  // and the last norm. fp32: H100's vector rate.
  const double parameters =
      2.0 * 32000 * 1024 + 4.0 * (4.0 * 1024 * 1024 + 3.0 * 1024 * 4096 + 2 * 1024) + 1024;
  const double per_token = 6 * parameters + 12.0 * 4 * 1024 * 1024;
  EXPECT_NEAR(model_flops_utilization(of.config, of.plan, of.hardware, 1024, 1e5),
              per_token * 1e5 / (8 * 66.9e12), 1e-9);
}

TEST(Predict, TheRunHasEveryRankOfTheStep) {
  const Case of("full_shard", 4);
  const Prediction now = predict(of.workload, of.plan, of.hardware);
  const trace::Run run = predicted_run(of.workload, of.plan, now, of.hardware);
  EXPECT_EQ(run.traces.size(), 4U);
  ASSERT_TRUE(run.planned);
  EXPECT_EQ(run.planned->workload, of.workload);
}

// Every gradient is reduced once, in the buckets of the plan, by one communicator.
TEST(Predict, ReplicatedUnitsReduceTheirBuckets) {
  const Case of("replicate");
  const Prediction now = predict(of.workload, of.plan, of.hardware);
  ASSERT_GT(now.planned.buckets.size(), 3U);
  const GpuCostModel model(of.hardware);
  Bytes bytes = 0, parameters = 0;
  Nanoseconds least = 0;
  for (const schedule::PlannedBucket& bucket : now.planned.buckets) {
    bytes += bucket.bytes;
    least += model.duration(CollectiveKind::kAllReduce, 8, bucket.bytes);
  }
  for (const plan::Parameter& parameter : of.plan.tree.parameters) {
    parameters += parameter.numel * 4;
  }
  EXPECT_EQ(bytes, parameters);
  EXPECT_EQ(now.busy.communication, least);
  EXPECT_LT(now.busy.exposed_comm, now.busy.communication);  // beside the backward of the rest
  // The last bucket is complete when backward is: nothing is left to hide it under but the copies
  // of the others back to their gradients.
  const Bytes last = now.planned.buckets.back().bytes;
  EXPECT_GE(now.busy.exposed_comm + model.copy(bytes - last, bytes - last),
            model.duration(CollectiveKind::kAllReduce, 8, last) * 9 / 10);
  const auto category = [&](MemoryCategory of_category) {
    return now.memory.at_peak[static_cast<size_t>(of_category)];
  };
  EXPECT_NEAR(static_cast<double>(category(MemoryCategory::kParameters)),
              static_cast<double>(parameters), 0.05 * static_cast<double>(parameters));
  EXPECT_GE(category(MemoryCategory::kCommunication), bytes);
  const trace::Run run = predicted_run(of.workload, of.plan, now, of.hardware);
  int64_t elements = 0;
  for (const trace::CollectiveArgs& each : run.traces[0].collectives) {
    elements += each.in_nelems;
  }
  EXPECT_EQ(elements * 4, parameters);
}

TEST(Predict, RefusesMoreRanksThanThereAreGpus) {
  const Case of("full_shard", 16);
  EXPECT_THROW((void)predict(of.workload, of.plan, of.hardware), InputError);
}

TEST(Predict, SlowestRankIsShown) {
  const Case of;
  RunSettings settings;
  settings.simulation.rank_slowdown = {1, 1, 1, 1, 1, 2, 1, 1};
  const Prediction alike = predict(of.workload, of.plan, of.hardware);
  const Prediction slow = predict(of.workload, of.plan, of.hardware, settings);
  EXPECT_GT(slow.busy.compute, alike.busy.compute * 19 / 10);
}

}  // namespace
}  // namespace shardlens::sim
