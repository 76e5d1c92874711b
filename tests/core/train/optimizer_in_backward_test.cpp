// Units whose optimizer runs in backward: the numbers are those of the ordinary optimizer, to the
// bit on the CPU, and gradients do not stay.
#include <fstream>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/allclose.h>
#include <ATen/ops/zeros.h>

#include "core/dist/world.h"
#include "core/models/model.h"
#include "core/plan/resolve.h"
#include "core/train/parallel_model.h"
#include "core/train/trainer.h"
#include "tests/core/fsdp/emulated_world.h"
#include "tests/core/fsdp/fake_device.h"
#include "tests/core/train/train_context.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"

namespace shardlens::train {
namespace {

constexpr const char* kThreeLayers = R"({"model_type": "mlp", "vocab_size": 64, "hidden_size": 16,
  "intermediate_size": 24, "num_hidden_layers": 3})";
constexpr const char* kInBackward = R"(, "optimizer_in_backward": true)";
constexpr const char* kUnitsOfLayers = R"(, "units": [{"modules": ""}, {"modules": "layers.*"}])";

struct InBackwardCase {
  const char* name;
  std::string plan;  // keys of a plan
  int ranks = 2;
  int64_t accumulate = 1;
  plan::Optimizer optimizer = plan::Optimizer::kAdamW;
  std::string units = kUnitsOfLayers;
  double momentum = 0.9;
};

void PrintTo(const InBackwardCase& c, std::ostream* out) {
  *out << c.name;
}

struct InBackwardOutcome {
  std::vector<StepReport> reports;
  std::vector<at::Tensor> shards;
};

// The ranks of a test are threads, which share it.
const TokenFile& written_tokens() {
  static const std::unique_ptr<TokenFile> tokens = [] {
    const test::TemporaryDirectory folder;
    const auto path = folder.path() / "tokens";
    {
      std::ofstream out(path, std::ios::binary);
      for (int i = 0; i < 2000; ++i) {
        out.put(static_cast<char>(i * i % 61));
      }
    }
    return std::make_unique<TokenFile>(path);
  }();
  return *tokens;
}

TrainOptions in_backward_options(const InBackwardCase& c) {
  TrainOptions options;
  options.steps = 4;
  options.step.batch = 2;
  options.step.seq = 8;
  options.step.accumulate = c.accumulate;
  options.step.sync_every_microbatch = c.accumulate == 1;
  options.step.optimizer = c.optimizer;
  options.step.momentum = c.momentum;
  return options;
}

InBackwardOutcome run(const InBackwardCase& c,
                      dist::World& world,
                      bool in_backward,
                      const TrainOptions& options) {
  const plan::ModelConfig config = plan::parse_model_config(kThreeLayers, "test");
  const auto model = models::make_model(config, models::Init::kRandom, 5);
  const c10::Device device = world.world().device();
  if (!device.is_cpu()) {
    test::move_to_device(*model);
  }
  const plan::Plan plan = plan::parse_plan(
      R"({"version": 1)" + c.units + c.plan + (in_backward ? kInBackward : "") + "}", "test");
  fsdp::Options sharding;
  sharding.world = &world;
  sharding.check_ledger = true;
  const auto sharded =
      apply_plan(model, plan::resolve(plan, plan::module_tree(config), world.size()), sharding);
  TrainContext context = context_of(*model, *sharded, world, written_tokens());
  context.device = device;
  InBackwardOutcome outcome;
  train(context, options, [&](const StepReport& report) { outcome.reports.push_back(report); });
  for (const at::Tensor& shard : sharded->flat_shards()) {
    outcome.shards.push_back(shard.detach().cpu().clone());
    EXPECT_FALSE(shard.grad().defined());
  }
  return outcome;
}

void expect_equal_outcome(const InBackwardOutcome& seen, const InBackwardOutcome& expected) {
  ASSERT_EQ(seen.reports.size(), expected.reports.size());
  for (size_t i = 0; i < expected.reports.size(); ++i) {
    EXPECT_EQ(seen.reports[i].loss, expected.reports[i].loss) << "step " << i;
    // Summed over the units in another order.
    EXPECT_NEAR(seen.reports[i].grad_norm, expected.reports[i].grad_norm,
                1e-6 * expected.reports[i].grad_norm);
  }
  ASSERT_EQ(seen.shards.size(), expected.shards.size());
  for (size_t i = 0; i < expected.shards.size(); ++i) {
    EXPECT_TRUE(seen.shards[i].equal(expected.shards[i])) << "shard " << i;
  }
}

class OptimizerInBackwardTest : public testing::TestWithParam<InBackwardCase> {};

TEST_P(OptimizerInBackwardTest, HasTheNumbersOfTheOrdinaryOptimizer) {
  const InBackwardCase& c = GetParam();
  test::run_ranks(c.ranks, [&](dist::World& world) {
    expect_equal_outcome(run(c, world, true, in_backward_options(c)),
                         run(c, world, false, in_backward_options(c)));
  });
}

// On a device nothing but streams and events orders the work.
TEST_P(OptimizerInBackwardTest, IsOrderedByEventsOnADevice) {
  const InBackwardCase& c = GetParam();
  const auto emulated = [&](c10::Device device, bool in_backward) {
    const auto world = test::emulated_world(c.ranks, device);
    return run(c, *world, in_backward, in_backward_options(c));
  };
  const InBackwardOutcome cpu = emulated(c10::kCPU, false);
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const test::DeviceScope scope(seed);
    const InBackwardOutcome device = emulated(test::kFakeDevice, true);
    for (size_t i = 0; i < cpu.reports.size(); ++i) {
      EXPECT_NEAR(device.reports[i].loss, cpu.reports[i].loss, 1e-4 * cpu.reports[i].loss);
      EXPECT_NEAR(device.reports[i].grad_norm, cpu.reports[i].grad_norm,
                  2e-4 * cpu.reports[i].grad_norm);
    }
    for (size_t i = 0; i < cpu.shards.size(); ++i) {
      EXPECT_TRUE(at::allclose(device.shards[i], cpu.shards[i], 1e-3, 2e-4)) << "shard " << i;
    }
  }
}

constexpr auto kSgd = plan::Optimizer::kSgd;
constexpr auto kAdamW = plan::Optimizer::kAdamW;

INSTANTIATE_TEST_SUITE_P(
    Plans,
    OptimizerInBackwardTest,
    testing::Values(
        InBackwardCase{"defaults", ""},
        InBackwardCase{"sgd", "", 2, 1, kSgd},
        InBackwardCase{"sgd_without_momentum", "", 2, 1, kSgd, kUnitsOfLayers, 0},
        InBackwardCase{"per_parameter", R"(, "layout": "per_parameter")", 3},
        InBackwardCase{"per_parameter_sgd", R"(, "layout": "per_parameter")", 2, 1, kSgd},
        InBackwardCase{"fsdp1", R"(, "dialect": "fsdp1")"},
        InBackwardCase{"microbatches", "", 2, 3},
        InBackwardCase{"fsdp1_microbatches", R"(, "dialect": "fsdp1")", 2, 3},
        InBackwardCase{
            "kept", R"(, "reshard_after_forward": false, "reshard_after_backward": false)", 2, 2},
        InBackwardCase{"bf16", R"(, "mixed_precision": {"param_dtype": "bf16"})"},
        InBackwardCase{"hybrid", R"(, "mesh": {"replicate": 2, "shard": 2})", 4},
        InBackwardCase{"no_shard", R"(, "mesh": {"replicate": 2, "shard": 1})", 2},
        InBackwardCase{"one_rank", "", 1},
        InBackwardCase{"frozen",
                       R"(, "frozen_parameters": ["layers.*.fc2.weight", "layers.0.**"])"},
        InBackwardCase{"checkpoints", R"(, "activation_checkpointing": ["layers.*"])"},
        InBackwardCase{"frozen_views", R"(, "views": "frozen")"},
        InBackwardCase{"blocks", "", 2, 1, kAdamW,
                       R"(, "units": [{"modules": "", "optimizer_in_backward": false},
                            {"modules": "layers.*"}])"},
        InBackwardCase{
            "replicated_blocks", "", 2, 1, kAdamW,
            R"(, "units": [{"modules": ""}, {"modules": "layers.*", "api": "replicate"}])"}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(OptimizerInBackwardMisuseTest, AStepThatNeedsAllGradientsIsRefused) {
  test::run_ranks(1, [&](dist::World& world) {
    TrainOptions options = in_backward_options({"clip", ""});
    options.step.clip = 1;
    EXPECT_THAT(test::message_of<InputError>([&] {
                  run({"clip", ""}, world, true, options);
                }),
                testing::HasSubstr("#/optimizer_in_backward: clipping needs"));
  });
}

TEST(OptimizerInBackwardMisuseTest, TheModelSaysWhatIsMissing) {
  const plan::ModelConfig config = plan::parse_model_config(kThreeLayers, "test");
  test::run_ranks(1, [&](dist::World& world) {
    const auto sharded = [&](bool in_backward, const std::shared_ptr<models::CausalLm>& model) {
      const plan::Plan plan = plan::parse_plan(
          std::string(R"({"version": 1)") + kUnitsOfLayers + (in_backward ? kInBackward : "") + "}",
          "test");
      fsdp::Options sharding;
      sharding.world = &world;
      return apply_plan(model, plan::resolve(plan, plan::module_tree(config), 1), sharding);
    };
    const auto model = models::make_model(config, models::Init::kRandom, 5);
    const auto with = sharded(true, model);
    const at::Tensor tokens = at::zeros({1, 4}, at::kLong);
    EXPECT_THAT(test::message_of<UsageError>([&] { model->logits(tokens); }),
                testing::HasSubstr("call set_optimizer_in_backward() before"));
    int64_t steps = 0;
    with->set_optimizer_in_backward({[&](std::span<const fsdp::ShardUpdate> updates) {
                                       steps += static_cast<int64_t>(updates.size());
                                       EXPECT_TRUE(updates.front().values.is_alias_of(
                                           with->flat_shards()[updates.front().shard]));
                                     },
                                     2.0});
    model->logits(tokens).sum().backward();
    EXPECT_EQ(steps, static_cast<int64_t>(with->flat_shards().size()));
    EXPECT_GT(with->clip_grad_norm(std::numeric_limits<double>::infinity()), 0);
    EXPECT_THAT(test::message_of<UsageError>([&] { with->clip_grad_norm(1.0); }),
                testing::HasSubstr("expected no clipping"));
    EXPECT_THAT(test::message_of<UsageError>(
                    [&] { with->clip_grad_norm(std::numeric_limits<double>::infinity(), 1); }),
                testing::HasSubstr("set norm_type in set_optimizer_in_backward()"));
    const auto other = models::make_model(config, models::Init::kRandom, 5);
    const auto without = sharded(false, other);
    EXPECT_THAT(test::message_of<UsageError>([&] { without->set_optimizer_in_backward({}); }),
                testing::HasSubstr("no unit of the plan has optimizer_in_backward"));
  });
}

}  // namespace
}  // namespace shardlens::train
