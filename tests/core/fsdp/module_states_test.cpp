// sync_module_states and device_id.
#include "core/fsdp/apply/module_states.h"

#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include "core/base/error.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/module/hookable.h"
#include "tests/core/fsdp/fake_device.h"
#include "tests/core/fsdp/seeded.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

struct PartImpl : torch::nn::Module {
  explicit PartImpl(double value)
      : linear(register_module("linear", torch::nn::Linear(3, 3))),
        offset(register_buffer("offset", at::full({3}, value))) {
    const at::NoGradGuard no_grad;
    linear->weight.fill_(value);
    linear->bias.fill_(-value);
  }
  at::Tensor forward(const at::Tensor& x) { return linear(x) + offset; }
  torch::nn::Linear linear;
  at::Tensor offset;
};
SHARDLENS_MODULE(Part);

struct WholeImpl : torch::nn::Module {
  explicit WholeImpl(double value)
      : first(register_module("first", Part(value))),
        second(register_module("second", Part(value + 0.5))) {}
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  Part first, second;
};
SHARDLENS_MODULE(Whole);

constexpr const char* kPlan = R"({"version": 1, "units": [{"modules": ""}, {"modules": "first"}]})";

// Whether all parameters and buffers are those of Whole(value).
bool is_whole(Whole& model, ShardedModel& sharded, double value) {
  Whole expected(value);
  bool same = true;
  for (uint32_t i = 0; i < sharded.plan().tree.parameters.size(); ++i) {
    const at::Tensor seen = sharded.full_parameter(i).cpu();
    const at::Tensor wanted =
        expected->named_parameters()[sharded.plan().tree.parameters[i].fqn].detach();
    same = same && at::equal(seen, wanted);
  }
  return same && at::equal(model->first->offset.cpu(), expected->first->offset) &&
         at::equal(model->second->offset.cpu(), expected->second->offset);
}

TEST(ModuleStatesTest, EveryRankGetsThoseOfRankZero) {
  for (const int replicate : {1, 2}) {
    test::run_ranks(4, [&](dist::World& world) {
      const std::string mesh = replicate == 1 ? "" : R"("mesh": {"replicate": 2}, )";
      for (const bool sync : {false, true}) {
        Whole model(world.rank() + 1);
        const auto sharded = fully_shard(
            model.ptr(),
            plan::parse_plan(R"({"version": 1, )" + mesh + std::string(kPlan).substr(15), "test"),
            {.world = &world, .sync_module_states = sync});
        // Every rank gathers, so all must do the same.
        const bool of_first = is_whole(model, *sharded, 1);
        EXPECT_EQ(of_first, sync) << "rank " << world.rank();
      }
    });
  }
}

TEST(ModuleStatesTest, AlsoOfUnitsThatAreShardedOneByOne) {
  test::run_ranks(2, [](dist::World& world) {
    Whole model(world.rank() + 1);
    const plan::Plan settings = plan::parse_plan(R"({"version": 1})", "test");
    const Options options{.world = &world, .sync_module_states = true};
    fully_shard_unit({model->first.ptr()}, settings, options);
    fully_shard_unit({model.ptr()}, settings, options);
    EXPECT_TRUE(is_whole(model, *lazy_init(model.ptr()), 1));
  });
}

TEST(ModuleStatesTest, AModelOnTheCpuIsBroughtToTheDevice) {
  Whole on_cpu(0.25);
  const at::Tensor x = test::seeded({2, 3}, 1);
  const at::Tensor expected = on_cpu(x);
  for (const bool offload : {false, true}) {
    const test::DeviceScope scope(offload ? 1 : 0);
    dist::WorldOptions options;
    options.backend = dist::BackendKind::kEmulated;
    options.world_size = 1;
    options.device = test::kFakeDevice;
    const auto world = dist::World::join(options);
    Whole model(0.25);
    plan::Plan plan = plan::parse_plan(kPlan, "test");
    plan.cpu_offload = offload;
    const auto sharded = fully_shard(
        model.ptr(), plan, {.world = world.get(), .device_id = c10::Device(test::kFakeDevice)});
    EXPECT_EQ(model->first->offset.device(), test::kFakeDevice);
    EXPECT_EQ(model->first->linear->weight.is_cpu(), offload);
    const at::Tensor y = model(x.to(test::kFakeDevice));
    EXPECT_TRUE(at::allclose(y.detach().cpu(), expected, 1e-5, 1e-6));
    y.sum().backward();
  }
}

TEST(ModuleStatesTest, AnotherDeviceThanTheWorldsIsNamed) {
  test::run_ranks(2, [](dist::World& world) {
    Whole model(1);
    EXPECT_THAT(test::message_of<UsageError>([&] {
                  static_cast<void>(
                      fully_shard(model.ptr(), plan::parse_plan(kPlan, "test"),
                                  {.world = &world, .device_id = c10::Device(c10::kCUDA, 1)}));
                }),
                testing::AllOf(testing::HasSubstr("inconsistent compute device and device_id"),
                               testing::HasSubstr("communicate on cpu, device_id is cuda:1")));
  });
}

}  // namespace
}  // namespace shardlens::fsdp
