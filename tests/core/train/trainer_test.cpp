// The loop of steps on several ranks.
#include "core/train/trainer.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/ops/allclose.h>
#include <ATen/ops/tensor.h>

#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/fsdp/apply/uneven_inputs.h"
#include "core/models/model.h"
#include "core/models/ops.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/train/parallel_model.h"
#include "core/train/training_checkpoint.h"
#include "tests/core/train/train_context.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace shardlens::train {
namespace {

constexpr const char* kSmallLlama = R"({"model_type": "llama", "vocab_size": 256,
  "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
  "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64})";

// A signal reaches rank 1 after its second step, and rank 0 not at all.
TEST(TrainerTest, AStopOfOneRankEndsAllAfterTheSameStep) {
  const plan::ModelConfig config = plan::parse_model_config(kSmallLlama, "small");
  std::array<int64_t, 2> steps{};
  test::run_ranks(2, [&](dist::World& world) {
    const auto model = models::make_model(config, models::Init::kNone);
    const plan::ModuleTree tree = plan::module_tree(config);
    fsdp::Options sharding;
    sharding.world = &world;
    const auto sharded = apply_plan(
        model, plan::resolve(plan::strategy_plan("full_shard", tree), tree, 2), sharding);
    initialize_parameters(*sharded, config, 1);
    const TokenFile tokens(std::string(SHARDLENS_TEST_DATA) + "/tokens.u16.bin");
    std::atomic<bool> stop{false};
    TrainContext context = context_of(*model, *sharded, world, tokens);
    context.stop = &stop;
    TrainOptions options;
    options.steps = 6;
    options.step.batch = 1;
    options.step.seq = 8;
    steps[static_cast<size_t>(world.rank())] =
        train(context, options,
              [&](const StepReport& report) { stop = world.rank() == 1 && report.step == 1; });
  });
  EXPECT_THAT(steps, testing::Each(3));
}

struct EpochCase {
  int ranks;
  int64_t accumulate;
  bool sync;
  std::vector<int64_t> batches;  // of each step, all ranks together; 7 in all
};

// Seven samples, once each, in batches of one. The expected losses and parameters are those of an
// unsharded model whose steps take the mean over the same samples.
TEST(TrainerTest, OneEpochUsesEverySampleOnce) {
  const plan::ModelConfig config = plan::parse_model_config(kSmallLlama, "small");
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("one_epoch_" + std::to_string(::getpid()) + ".tokens");
  constexpr int64_t kSeq = 8, kSamples = 7;
  {
    std::ofstream out(path, std::ios::binary);
    for (int i = 0; i < kSamples * kSeq + 5; ++i) {
      out.put(static_cast<char>(i * i % 61));
    }
  }
  const TokenFile tokens(path);
  std::filesystem::remove(path);
  for (const EpochCase& c : {EpochCase{3, 1, true, {3, 3, 1}}, EpochCase{2, 2, false, {4, 3}},
                             EpochCase{2, 3, true, {6, 1}}, EpochCase{1, 2, true, {2, 2, 2, 1}}}) {
    SCOPED_TRACE(std::to_string(c.ranks) + " ranks, " + std::to_string(c.accumulate));
    const auto whole = models::make_model(config, models::Init::kRandom, 5);
    const auto optimizer = make_optimizer(whole->parameters(), {.kind = plan::Optimizer::kSgd});
    std::vector<double> losses;
    int64_t sample = 0;
    for (const int64_t batches : c.batches) {
      double loss = 0;
      for (int64_t i = 0; i < batches; ++i, ++sample) {
        std::vector<int64_t> row(kSeq + 1);
        tokens.read(sample * kSeq, row);
        const at::Tensor ids = at::tensor(row, at::kLong);
        const at::Tensor mean =
            models::token_loss(whole->logits(ids.narrow(0, 0, kSeq).unsqueeze(0)).flatten(0, 1),
                               ids.narrow(0, 1, kSeq));
        mean.div(static_cast<double>(batches)).backward();
        loss += mean.item<double>() / static_cast<double>(batches);
      }
      losses.push_back(loss);
      optimizer->step();
      for (at::Tensor& parameter : whole->parameters()) {
        parameter.mutable_grad().reset();
      }
    }
    test::run_ranks(c.ranks, [&](dist::World& world) {
      const auto model = models::make_model(config, models::Init::kRandom, 5);
      const plan::ModuleTree tree = plan::module_tree(config);
      fsdp::Options sharding;
      sharding.world = &world;
      const auto sharded = apply_plan(
          model, plan::resolve(plan::strategy_plan("full_shard", tree), tree, c.ranks), sharding);
      TrainContext context = context_of(*model, *sharded, world, tokens);
      TrainOptions options;
      options.steps = 100;
      options.one_epoch = true;
      options.step.batch = 1;
      options.step.seq = kSeq;
      options.step.accumulate = c.accumulate;
      options.step.sync_every_microbatch = c.sync;
      options.step.optimizer = plan::Optimizer::kSgd;
      options.weight_decay = 0.01;
      std::vector<double> seen;
      EXPECT_EQ(steps_of(context, options), static_cast<int64_t>(losses.size()));
      EXPECT_EQ(
          train(context, options, [&](const StepReport& report) { seen.push_back(report.loss); }),
          static_cast<int64_t>(losses.size()));
      EXPECT_THAT(seen, testing::Pointwise(testing::DoubleNear(1e-5), losses));
      options.step.batch = kSamples;
      if (c.ranks > 1) {
        EXPECT_THAT(
            test::message_of<InputError>([&] { static_cast<void>(steps_of(context, options)); }),
            testing::HasSubstr("1 batches of 7 samples are left for"));
      }
      for (uint32_t i = 0; i < tree.parameters.size(); ++i) {
        EXPECT_TRUE(at::allclose(sharded->full_parameter(i), whole->parameters().at(i), 1e-4, 1e-6))
            << tree.parameters[i].fqn;
      }
    });
  }
}

TEST(TrainerTest, RanksCannotJoinReplicatedUnits) {
  const plan::ModelConfig config = plan::parse_model_config(kSmallLlama, "small");
  const plan::ModuleTree tree = plan::module_tree(config);
  test::run_ranks(1, [&](dist::World& world) {
    const auto model = models::make_model(config, models::Init::kRandom, 5);
    fsdp::Options sharding;
    sharding.world = &world;
    const auto parallel =
        apply_plan(model, plan::resolve(plan::strategy_plan("replicate", tree), tree, 1), sharding);
    EXPECT_THAT(test::message_of<UsageError>([&] { fsdp::Join(*parallel, world); }),
                testing::HasSubstr(R"(units with "api": "replicate")"));
  });
}

}  // namespace
}  // namespace shardlens::train
