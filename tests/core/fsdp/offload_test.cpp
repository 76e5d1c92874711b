// CPU offload: shards, their gradients and the optimizer are on the host. The numbers must be those
// without it, on the CPU and on a device on which nothing but streams and events orders the work.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/optim/adamw.h>

#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "tests/core/fsdp/fake_device.h"
#include "tests/core/fsdp/mlp.h"
#include "tests/core/fsdp/seeded.h"
#include "tests/support/message_of.h"

namespace shardlens::fsdp {
namespace {

struct OffloadCase {
  const char* name;
  std::string plan;  // keys of a plan
  int ranks = 2;
  int microbatches = 1;
  bool sync_every = true;
  std::string offload =
      R"("cpu_offload": true, "units": [{"modules": ""}, {"modules": "layers.*"}])";
  bool everything = true;  // on the host
};

void PrintTo(const OffloadCase& c, std::ostream* out) {
  *out << c.name;
}

constexpr const char* kWithout = R"("units": [{"modules": ""}, {"modules": "layers.*"}])";

int64_t device_bytes() {
  const auto stats = c10::getDeviceAllocator(test::kFakeDevice.type())->getDeviceStats(0);
  return stats.allocated_bytes.front().current;
}

// A sharded model on rank 0 of an emulated world.
struct Sharded {
  Sharded(const OffloadCase& c, c10::Device on, bool offload) : device(on) {
    dist::WorldOptions options;
    options.backend = dist::BackendKind::kEmulated;
    options.world_size = c.ranks;
    options.device = device;
    world = dist::World::join(options);
    if ((!offload || !c.everything) && !device.is_cpu()) {
      test::move_to_device(*model);
    }
    const std::string plan = R"({"version": 1, )" + (offload ? c.offload : kWithout) + c.plan + "}";
    sharded = fully_shard(model.ptr(), plan::parse_plan(plan, "test"),
                          {.world = world.get(), .check_ledger = true});
  }
  at::Tensor loss(uint64_t seed) {
    return model(test::seeded({4, 5}, seed).to(device)).pow(2).mean();
  }

  c10::Device device;
  std::unique_ptr<dist::World> world;
  test::Mlp model = test::make_mlp(5, 3);
  std::shared_ptr<ShardedModel> sharded;
};

struct Outcome {
  std::vector<double> norms;
  std::vector<at::Tensor> shards;
  size_t on_host = 0;  // number of shards
};

Outcome train(const OffloadCase& c, c10::Device device, bool offload, bool evaluate = false) {
  Sharded run(c, device, offload);
  torch::optim::AdamW optimizer(run.model->parameters(), torch::optim::AdamWOptions(1e-2));
  Outcome outcome;
  for (uint64_t step = 0; step < 3; ++step) {
    for (int m = 0; m < c.microbatches; ++m) {
      run.sharded->set_requires_gradient_sync(c.sync_every || m + 1 == c.microbatches);
      run.loss(100 * step + static_cast<uint64_t>(m)).backward();
    }
    outcome.norms.push_back(run.sharded->clip_grad_norm(0.05));
    optimizer.step();
    run.sharded->optimizer_done();
    optimizer.zero_grad();
    if (evaluate) {
      const at::NoGradGuard no_grad;
      const at::Tensor loss = run.loss(7);
      for (at::Tensor& parameter : run.model->parameters()) {
        parameter.mul_(1.0625);  // at once, while the device may still be at work
      }
      outcome.norms.push_back(loss.item<double>());  // of the values before
    }
    if (offload && c.everything && !evaluate && !device.is_cpu()) {
      EXPECT_EQ(device_bytes(), 0) << "between steps";
    }
  }
  for (const at::Tensor& shard : run.sharded->flat_shards()) {
    outcome.on_host += shard.is_cpu() ? 1 : 0;
    outcome.shards.push_back(shard.detach().cpu().clone());
  }
  return outcome;
}

void expect_close(const Outcome& seen, const Outcome& expected) {
  for (size_t i = 0; i < expected.norms.size(); ++i) {
    ASSERT_NEAR(seen.norms[i], expected.norms[i], 1e-5 * expected.norms[i]);  // summed in fp32
  }
  for (size_t i = 0; i < expected.shards.size(); ++i) {
    ASSERT_TRUE(at::allclose(seen.shards[i], expected.shards[i], 1e-5, 1e-6)) << "shard " << i;
  }
}

class OffloadTest : public testing::TestWithParam<OffloadCase> {};

TEST_P(OffloadTest, ChangesNoNumbers) {
  const Outcome without = train(GetParam(), c10::kCPU, false);
  const Outcome on_cpu = train(GetParam(), c10::kCPU, true);
  EXPECT_EQ(on_cpu.norms, without.norms);
  ASSERT_EQ(on_cpu.shards.size(), without.shards.size());
  for (size_t i = 0; i < without.shards.size(); ++i) {
    EXPECT_TRUE(on_cpu.shards[i].equal(without.shards[i])) << "shard " << i;
  }
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const test::DeviceScope scope(seed);
    const Outcome on_device = train(GetParam(), test::kFakeDevice, true);
    expect_close(on_device, without);
    if (GetParam().everything) {
      EXPECT_EQ(on_device.on_host, on_device.shards.size());
    } else {
      EXPECT_GT(on_device.on_host, 0U);
      EXPECT_LT(on_device.on_host, on_device.shards.size());
    }
  }
}

TEST(OffloadOrderTest, AnOptimizerOrProgramMayWriteAtOnceAfterAForward) {
  for (const char* layout : {"flat", "per_parameter"}) {
    const OffloadCase c{"evaluated", std::string(R"(, "layout": ")") + layout + "\""};
    const Outcome without = train(c, c10::kCPU, false, true);
    for (uint64_t seed = 0; seed < 24; ++seed) {
      SCOPED_TRACE(layout + std::string(", seed ") + std::to_string(seed));
      const test::DeviceScope scope(seed);
      expect_close(train(c, test::kFakeDevice, true, true), without);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plans,
    OffloadTest,
    testing::Values(
        OffloadCase{"defaults", ""},
        OffloadCase{"per_parameter", R"(, "layout": "per_parameter")", 3},
        OffloadCase{"fsdp1", R"(, "dialect": "fsdp1")"},
        OffloadCase{"fsdp1_prefetch", R"(, "dialect": "fsdp1", "forward_prefetch": 1)", 2, 2,
                    false},
        OffloadCase{"fsdp1_added", R"(, "dialect": "fsdp1")", 2, 3},
        OffloadCase{"reshard_to_2_ranks", R"(, "reshard_after_forward": 2)", 4},
        OffloadCase{"no_reshard", R"(, "reshard_after_forward": false)", 2, 3, false},
        OffloadCase{"added", "", 2, 3},
        OffloadCase{"added_per_parameter", R"(, "layout": "per_parameter")", 2, 3},
        OffloadCase{"mixed_precision",
                    R"(, "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"})", 3, 2,
                    false},
        OffloadCase{"bf16_per_parameter",
                    R"(, "layout": "per_parameter", "mixed_precision": {"param_dtype": "bf16"})",
                    2},
        OffloadCase{"hybrid_shard", R"(, "mesh": {"replicate": 2, "shard": 2})", 4},
        OffloadCase{"replicated", R"(, "mesh": {"replicate": 2, "shard": 1})", 2},
        OffloadCase{"fsdp1_replicated",
                    R"(, "dialect": "fsdp1", "mesh": {"replicate": 2, "shard": 1})", 2},
        OffloadCase{"one_rank", "", 1},
        OffloadCase{"divide_factor", R"(, "gradient_divide_factor": 3.0)"},
        OffloadCase{"blocks", "", 2, 1, true,
                    R"("units": [{"modules": ""}, {"modules": "layers.*", "cpu_offload": true}])",
                    false},
        OffloadCase{
            "root", R"(, "layout": "per_parameter")", 2, 1, true,
            R"("cpu_offload": true, "units": [{"modules": ""}, {"modules": "layers.*", "cpu_offload": false}])",
            false}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(OffloadMisuseTest, MovedParametersAreNamed) {
  const test::DeviceScope scope(0);
  Sharded run({"moved", ""}, test::kFakeDevice, true);
  test::move_to_device(*run.model);
  EXPECT_THAT(test::message_of<UsageError>([&] { run.loss(1); }),
              testing::AllOf(testing::HasSubstr("was Float cpu when it was sharded"),
                             testing::HasSubstr("is now Float fake:0")));
}

}  // namespace
}  // namespace shardlens::fsdp
