#include "sim/advise/mesh_proposal.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/advise/advice_json.h"

namespace shardlens::sim {
namespace {

using ::testing::HasSubstr;

constexpr const char* kModel = R"({"model_type": "llama", "hidden_size": 1024,
  "intermediate_size": 2816, "num_hidden_layers": 2, "num_attention_heads": 8,
  "num_key_value_heads": 8, "vocab_size": 8192, "max_position_embeddings": 2048})";
constexpr const char* kMachine = "4xPCIe";

// A simulated run of four ranks, sharded over all: what other meshes do on its machine is known.
class MeshProposalTest : public ::testing::Test {
 protected:
  MeshProposalTest() {
    scenario_.model =
        std::make_shared<const ScenarioModel>(plan::parse_model_config(kModel, "test"));
    scenario_.plan = plan::strategy_plan("full_shard", scenario_.model->tree());
    scenario_.step = {.batch = 1, .seq = 512};
    scenario_.machine = std::make_shared<const TargetMachine>(load_hardware(kMachine));
    scenario_.world_size = 4;
    run_ = RecordedRun::of(predicted_run(evaluate(scenario_, {.timeline = true})));
    known_.model = plan::parse_model_config(kModel, "test");
    known_.threads = 1;
  }

  Scenario scenario_;
  std::shared_ptr<const RecordedRun> run_;
  MeshProposalOptions known_;
};

TEST_F(MeshProposalTest, IsRefusedWithoutTheModel) {
  const MeshProposal found = propose_mesh(*run_);
  EXPECT_THAT(found.refusal, HasSubstr("--model"));
  EXPECT_FALSE(found.best);
  EXPECT_TRUE(mesh_proposal_json(found)["best"].is_null());
}

// Only collectives between all ranks were measured: replicas of the model, layers and sequences
// that all ranks divide are priced with them, and no mesh with smaller groups.
TEST_F(MeshProposalTest, LeavesOutWhatWasNotMeasured) {
  const MeshProposal found = propose_mesh(*run_, known_);
  ASSERT_EQ(found.refusal, "");
  EXPECT_EQ(found.searched, 3U);
  const plan::MeshSizes& best = found.best->mesh;
  EXPECT_EQ(std::max({*best.replicate, best.tensor, best.context}), 4);
  EXPECT_GT(found.refused, 0U);
  EXPECT_THAT(found.why_refused, HasSubstr("was measured"));
}

TEST_F(MeshProposalTest, IsTheBestOtherMeshOnTheMachine) {
  known_.hardware = kMachine;
  const MeshProposal found = propose_mesh(*run_, known_);
  ASSERT_EQ(found.refusal, "");
  ASSERT_TRUE(found.best && found.own);
  const plan::MeshSizes own{.replicate = 1, .shard = 4};
  EXPECT_EQ(found.own->mesh, own);
  EXPECT_FALSE(found.best->mesh == own);
  EXPECT_EQ(found.best->plan.mesh, found.best->mesh);
  EXPECT_EQ(found.change(), found.best->duration - found.own->duration);
  for (const PricedMesh* each : {&*found.own, &*found.best}) {
    Scenario truth = scenario_;
    truth.plan = each->plan;
    truth.step = each->step;
    const auto expected = static_cast<double>(evaluate(truth).step.duration);
    EXPECT_NEAR(static_cast<double>(each->duration) / expected, 1, 0.1) << each->title;
    ASSERT_TRUE(each->interval);
    EXPECT_LE(each->interval->low, each->duration);
    EXPECT_GE(each->interval->high, each->duration);
  }
  // As many samples of all ranks as before.
  EXPECT_EQ(found.best->step.samples() * 4 / found.best->mesh.tensor / found.best->mesh.context, 4);
}

}  // namespace
}  // namespace shardlens::sim
