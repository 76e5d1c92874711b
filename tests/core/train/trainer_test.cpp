// The loop of steps on several ranks.
#include "core/train/trainer.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/dist/world.h"
#include "core/fsdp/fully_shard.h"
#include "core/models/model.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/train/parallel_model.h"
#include "core/train/training_checkpoint.h"
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
    TrainContext context;
    context.model = model.get();
    context.sharded = sharded.get();
    context.world = &world;
    context.tokens = &tokens;
    context.rank = world.rank();
    context.ranks = world.size();
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

}  // namespace
}  // namespace shardlens::train
