#include "sim/search/on_ranks.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace shardlens::sim {
namespace {

Scenario on_ranks_scenario(int64_t ranks, const plan::MeshSizes& mesh) {
  Scenario out;
  out.model = std::make_shared<const ScenarioModel>(plan::parse_model_config(
      R"({"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024,
          "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 256,
          "max_position_embeddings": 1024})",
      "test"));
  out.plan = plan::strategy_plan("full_shard", out.model->tree());
  out.plan.mesh = mesh;
  out.world_size = ranks;
  out.step = {.batch = 1, .seq = 512};
  out.machine = std::make_shared<const TargetMachine>(load_hardware("8xH100"));
  return out;
}

void expect_mesh(const Scenario& of, int64_t replicate, int64_t shard, int64_t tensor) {
  EXPECT_EQ(of.plan.mesh.replicate, replicate);
  EXPECT_EQ(of.plan.mesh.shard, shard);
  EXPECT_EQ(of.plan.mesh.tensor, tensor);
}

TEST(OnRanks, EveryKindOfMeshKeepsWhatItIs) {
  expect_mesh(on_ranks(on_ranks_scenario(8, {}), 1024), 1, 1024, 1);
  expect_mesh(on_ranks(on_ranks_scenario(8, {.replicate = 8, .shard = 1}), 64), 64, 1, 1);
  expect_mesh(on_ranks(on_ranks_scenario(8, {.replicate = 2, .shard = 4}), 64), 16, 4, 1);
  expect_mesh(on_ranks(on_ranks_scenario(8, {.replicate = 2, .shard = 4}), 2), 1, 2, 1);
  expect_mesh(on_ranks(on_ranks_scenario(8, {.tensor = 4}), 32), 1, 8, 4);
}

TEST(OnRanks, NamesNumbersThatTheMeshCannotHave) {
  EXPECT_THROW((void)on_ranks(on_ranks_scenario(8, {.tensor = 4}), 2), InputError);
  EXPECT_THROW((void)on_ranks(on_ranks_scenario(8, {.replicate = 2, .shard = 4}), 18), InputError);
}

// Two nodes of a spec that is written with two nodes.
TEST(OnRanks, MoreNodesAreThoseOfASpecWithAsMany) {
  const Scenario grown = on_ranks(on_ranks_scenario(8, {}), 16);
  Scenario written = on_ranks_scenario(16, {});
  HardwareSpec two = load_hardware("8xH100");
  two.nodes = 2;
  written.machine = std::make_shared<const TargetMachine>(two);
  EXPECT_EQ(evaluate(grown).figures, evaluate(written).figures);
  EXPECT_EQ(evaluate(grown).memory.peak_allocated, evaluate(written).memory.peak_allocated);
}

TEST(OnRanks, AMachineWithoutANetworkHasOneNode) {
  Scenario of = on_ranks_scenario(4, {});
  HardwareSpec alone = load_hardware("8xH100");
  alone.fabric.network_gbps = 0;
  of.machine = std::make_shared<const TargetMachine>(alone);
  EXPECT_EQ(on_ranks(of, 8).world_size, 8);
  EXPECT_THROW((void)on_ranks(of, 16), InputError);
}

}  // namespace
}  // namespace shardlens::sim
