// The engine on a device on which nothing but streams and events orders the work (see [Note: Teeth]
// in fake_device.h): the numbers must equal those of the CPU's executor, whatever the device's
// order.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/equal.h>
#include <c10/core/StreamGuard.h>
#include <torch/optim/adamw.h>

#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "tests/core/fsdp/emulated_world.h"
#include "tests/core/fsdp/fake_device.h"
#include "tests/core/fsdp/mlp.h"
#include "tests/core/fsdp/seeded.h"

namespace shardlens::fsdp {
namespace {

struct TrainingCase {
  const char* name;
  std::string plan;  // JSON
  int ranks = 2;
  int microbatches = 1;
  bool sync_every = true;
  bool own_stream = false;  // trains on another stream than that of fully_shard
};

void PrintTo(const TrainingCase& c, std::ostream* out) {
  *out << c.name << ": " << c.plan << ", " << c.ranks << " ranks, " << c.microbatches
       << " microbatches";
}

struct Outcome {
  std::vector<double> norms;
  std::vector<at::Tensor> shards;
  int64_t unsharded_bytes = 0;
};

Outcome train(const TrainingCase& c, c10::Device device) {
  const auto world = test::emulated_world(c.ranks, device);
  test::Mlp model = test::make_mlp(5, 3);
  if (!device.is_cpu()) {
    test::move_to_device(*model);
  }
  const auto sharded = fully_shard(model.ptr(), plan::parse_plan(c.plan, "test"),
                                   {.world = world.get(), .check_ledger = true});
  c10::OptionalStreamGuard on_stream;
  if (c.own_stream && !device.is_cpu()) {
    on_stream.reset_stream(test::new_stream_after_current());
  }
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  Outcome outcome;
  for (uint64_t step = 0; step < 3; ++step) {
    for (int m = 0; m < c.microbatches; ++m) {
      sharded->set_requires_gradient_sync(c.sync_every || m + 1 == c.microbatches);
      const at::Tensor batch = test::seeded({4, 5}, 100 * step + static_cast<uint64_t>(m));
      model(batch.to(device)).pow(2).mean().backward();
    }
    outcome.norms.push_back(sharded->clip_grad_norm(0.05));
    optimizer.step();
    sharded->optimizer_done();
    optimizer.zero_grad();
    outcome.unsharded_bytes = sharded->unsharded_bytes();
  }
  for (const at::Tensor& shard : sharded->flat_shards()) {
    outcome.shards.push_back(shard.detach().cpu().clone());
  }
  return outcome;
}

class DeviceTrainingTest : public testing::TestWithParam<TrainingCase> {};

TEST_P(DeviceTrainingTest, NumbersAreThoseOfTheCpusExecutor) {
  const Outcome cpu = train(GetParam(), c10::kCPU);
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const test::DeviceScope scope(seed);
    const Outcome device = train(GetParam(), test::kFakeDevice);
    ASSERT_EQ(device.norms.size(), cpu.norms.size());
    for (size_t i = 0; i < cpu.norms.size(); ++i) {
      ASSERT_NEAR(device.norms[i], cpu.norms[i], 1e-5 * cpu.norms[i]);  // summed in fp32
    }
    ASSERT_EQ(device.shards.size(), cpu.shards.size());
    for (size_t i = 0; i < cpu.shards.size(); ++i) {
      ASSERT_TRUE(at::allclose(device.shards[i], cpu.shards[i], 1e-5, 1e-6)) << "shard " << i;
    }
    EXPECT_EQ(device.unsharded_bytes, cpu.unsharded_bytes);
  }
}

std::string plan_of(const std::string& more) {
  return R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}])" + more + "}";
}

INSTANTIATE_TEST_SUITE_P(
    Plans,
    DeviceTrainingTest,
    testing::Values(
        TrainingCase{"defaults", plan_of("")},
        TrainingCase{"fsdp1", plan_of(R"(, "dialect": "fsdp1")")},
        TrainingCase{
            "fsdp1_prefetch_without_limit",
            plan_of(R"(, "dialect": "fsdp1", "forward_prefetch": 1, "limit_all_gathers": false)")},
        TrainingCase{"per_parameter", plan_of(R"(, "layout": "per_parameter")"), 3},
        TrainingCase{"frozen_views", plan_of(R"(, "views": "frozen")")},
        TrainingCase{"reshard_with_prefetch",
                     plan_of(R"(, "reshard_after_forward": true, "forward_prefetch": 2)"), 3},
        TrainingCase{"reshard_to_2_ranks", plan_of(R"(, "reshard_after_forward": 2)"), 4},
        TrainingCase{"no_reshard_accumulated", plan_of(R"(, "reshard_after_forward": false)"), 2, 3,
                     false},
        TrainingCase{"microbatches_with_sync", plan_of(""), 2, 3, true},
        TrainingCase{"microbatches_without_sync", plan_of(""), 2, 3, false},
        TrainingCase{
            "mixed_precision",
            plan_of(R"(, "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"})"), 3,
            2, false},
        TrainingCase{"hybrid_shard", plan_of(R"(, "mesh": {"replicate": 2, "shard": 2})"), 4},
        TrainingCase{"replicated", plan_of(R"(, "mesh": {"replicate": 2, "shard": 1})"), 2},
        TrainingCase{"gradient_divide_factor", plan_of(R"(, "gradient_divide_factor": 3.0)")},
        TrainingCase{
            "fsdp1_reduce_dtype",
            plan_of(R"(, "dialect": "fsdp1", "mixed_precision": {"reduce_dtype": "bf16"})")},
        TrainingCase{"fsdp1_replicated_reduce_dtype",
                     plan_of(R"(, "dialect": "fsdp1", "mesh": {"replicate": 2, "shard": 1},
                                "mixed_precision": {"reduce_dtype": "bf16"})"),
                     2},
        TrainingCase{"own_stream", plan_of(""), 2, 2, true, true},
        TrainingCase{"own_stream_fsdp1", plan_of(R"(, "dialect": "fsdp1")"), 2, 2, false, true},
        TrainingCase{"own_stream_per_parameter", plan_of(R"(, "layout": "per_parameter")"), 2, 2,
                     true, true}),
    [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace shardlens::fsdp
