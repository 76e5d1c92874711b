// The step loop on a device: its numbers are the CPU's, and the host waits once a step.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/ops/allclose.h>
#include <ATen/ops/zeros.h>

#include "core/dist/world.h"
#include "core/models/model.h"
#include "core/plan/resolve.h"
#include "core/replicate/replicate.h"
#include "core/train/parallel_model.h"
#include "core/train/trainer.h"
#include "tests/core/fsdp/emulated_world.h"
#include "tests/core/fsdp/fake_device.h"
#include "tests/core/train/train_context.h"
#include "tests/support/message_of.h"

namespace shardlens::train {
namespace {

constexpr const char* kModel = R"({"model_type": "mlp", "vocab_size": 64, "hidden_size": 16,
  "intermediate_size": 24, "num_hidden_layers": 3})";
constexpr int64_t kSteps = 4;

struct StepsCase {
  const char* name;
  std::string plan;  // keys of a plan
  int64_t accumulate = 1;
  bool scaled = false;
  plan::Optimizer optimizer = plan::Optimizer::kAdamW;
  size_t waits = 1;  // of the host, in a step
};

void PrintTo(const StepsCase& c, std::ostream* out) {
  *out << c.name;
}

struct Steps {
  std::vector<StepReport> reports;
  std::vector<size_t> waits;  // of the host, by step
  std::vector<at::Tensor> shards;
};

std::filesystem::path token_file() {
  const auto path = std::filesystem::temp_directory_path() /
                    ("device_steps_" + std::to_string(::getpid()) + ".tokens");
  std::ofstream out(path, std::ios::binary);
  for (int i = 0; i < 2000; ++i) {
    out.put(static_cast<char>(i * i % 61));
  }
  return path;
}

Steps run_steps(const StepsCase& c, c10::Device device) {
  const std::filesystem::path path = token_file();
  const TokenFile tokens(path);
  std::filesystem::remove(path);
  const auto world = test::emulated_world(2, device);
  const plan::ModelConfig config = plan::parse_model_config(kModel, "test");
  const auto model = models::make_model(config, models::Init::kRandom, 5);
  if (!device.is_cpu()) {
    test::move_to_device(*model);
  }
  const plan::ModuleTree tree = plan::module_tree(config);
  const plan::Plan plan = plan::parse_plan(
      R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}])" + c.plan + "}",
      "test");
  fsdp::Options sharding;
  sharding.world = world.get();
  const auto sharded = apply_plan(model, plan::resolve(plan, tree, 2), sharding);
  TrainContext context = context_of(*model, *sharded, *world, tokens);
  context.device = device;
  TrainOptions options;
  options.steps = kSteps;
  options.step.batch = 2;
  options.step.seq = 8;
  options.step.accumulate = c.accumulate;
  options.step.clip = 0.5;
  options.step.optimizer = c.optimizer;
  options.scaler.scale = c.scaled ? 1e9 : 65536;  // overflows in the first steps
  Steps steps;
  test::forget_host_waits();
  train(context, options, [&](const StepReport& report) {
    steps.reports.push_back(report);
    steps.waits.push_back(test::host_waits().size());
    test::forget_host_waits();
  });
  for (const at::Tensor& shard : sharded->flat_shards()) {
    steps.shards.push_back(shard.detach().cpu().clone());
  }
  return steps;
}

class DeviceStepsTest : public testing::TestWithParam<StepsCase> {};

TEST_P(DeviceStepsTest, TheHostWaitsOnceAStep) {
  const Steps cpu = run_steps(GetParam(), c10::kCPU);
  const double tolerance = GetParam().scaled ? 2e-2 : 1e-4;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const test::DeviceScope scope(seed);
    const Steps device = run_steps(GetParam(), test::kFakeDevice);
    ASSERT_EQ(device.reports.size(), static_cast<size_t>(kSteps));
    for (size_t i = 0; i < device.reports.size(); ++i) {
      EXPECT_LE(device.waits[i], GetParam().waits) << "step " << i;
      const StepReport& report = device.reports[i];
      EXPECT_NEAR(report.loss, cpu.reports[i].loss, tolerance * cpu.reports[i].loss);
      EXPECT_EQ(report.skipped, cpu.reports[i].skipped) << "step " << i;
      EXPECT_EQ(report.loss_scale, cpu.reports[i].loss_scale) << "step " << i;
      if (!report.skipped) {
        EXPECT_NEAR(report.grad_norm, cpu.reports[i].grad_norm,
                    tolerance * cpu.reports[i].grad_norm);
      }
      EXPECT_TRUE(report.memory.has_value());
    }
    ASSERT_EQ(device.shards.size(), cpu.shards.size());
    for (size_t i = 0; i < cpu.shards.size() && !GetParam().scaled; ++i) {
      EXPECT_TRUE(at::allclose(device.shards[i], cpu.shards[i], 1e-3, 2e-4)) << "shard " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plans,
    DeviceStepsTest,
    testing::Values(
        StepsCase{"defaults", ""},
        StepsCase{"microbatches", "", 3},
        // FSDP1's limiter makes the host wait, as PyTorch's does.
        StepsCase{"fsdp1", R"(, "dialect": "fsdp1", "limit_all_gathers": false)", 2},
        StepsCase{"per_parameter", R"(, "layout": "per_parameter")", 2},
        StepsCase{"sgd", "", 1, false, plan::Optimizer::kSgd},
        StepsCase{"fp16", R"(, "mixed_precision": {"param_dtype": "fp16"})", 1, true},
        // The host waits for each unit's gradient, for the norm and for the scale.
        StepsCase{"offloaded", R"(, "cpu_offload": true)", 2, false, plan::Optimizer::kAdamW, 8},
        StepsCase{"offloaded_fp16",
                  R"(, "cpu_offload": true, "mixed_precision": {"param_dtype": "fp16"})", 1, true,
                  plan::Optimizer::kAdamW, 16},
        StepsCase{"ignored", R"(, "ignored_parameters": ["lm_head.weight", "layers.1.fc1.*"])"}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(DeviceModelTest, ReplicatedParametersOnAnotherDeviceThanTheWorldsAreNamed) {
  const test::DeviceScope scope(0);
  const auto world = test::emulated_world(2, test::kFakeDevice);
  const auto model =
      models::make_model(plan::parse_model_config(kModel, "test"), models::Init::kRandom, 5);
  const auto state = replicate::replicate(model, {.world = world.get()});
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT(test::message_of<UsageError>([&] {
                  model->logits(at::zeros({1, 4}, at::kLong));
                }),
                testing::AllOf(testing::HasSubstr("is on cpu, and the ranks communicate on fake:0"),
                               testing::HasSubstr("move the model")));
  }
}

}  // namespace
}  // namespace shardlens::train
