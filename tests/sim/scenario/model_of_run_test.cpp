#include "sim/scenario/model_of_run.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "sim/scenario/uncertainty.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace shardlens::sim {
namespace {

using ::testing::HasSubstr;

constexpr const char* kLlama = R"({"model_type": "llama", "hidden_size": 1024,
  "intermediate_size": 2816, "num_hidden_layers": 2, "num_attention_heads": 8,
  "num_key_value_heads": 8, "vocab_size": 8192, "max_position_embeddings": 2048})";
constexpr const char* kNode = "4xPCIe";

plan::ModelConfig llama(const std::string& change = "", const std::string& to = "") {
  std::string text = kLlama;
  if (!change.empty()) {
    text.replace(text.find(change), change.size(), to);
  }
  return plan::parse_model_config(text, "config.json");
}

// A simulated run of four ranks, sharded over all: what other degrees take there is known.
class ModelOfRunTest : public ::testing::Test {
 protected:
  ModelOfRunTest() {
    truth_.model = std::make_shared<const ScenarioModel>(llama());
    truth_.plan = plan::strategy_plan("full_shard", truth_.model->tree());
    truth_.step = {.batch = 1, .seq = 512};
    truth_.machine = std::make_shared<const TargetMachine>(load_hardware(kNode));
    truth_.world_size = 4;
    run_ = RecordedRun::of(predicted_run(evaluate(truth_, {.timeline = true})));
  }

  Scenario truth_;
  std::shared_ptr<const RecordedRun> run_;
};

TEST_F(ModelOfRunTest, TheOwnPlanIsPredictedAsRecorded) {
  const Prediction now = evaluate(scenario_of_model(*run_, llama(), kNode));
  ASSERT_TRUE(now.baseline);
  EXPECT_EQ(now.baseline->simulated, now.step.duration);
  EXPECT_EQ(now.baseline->measured, run_->baseline().measured);
  EXPECT_LT(std::abs(now.baseline->error()), 0.03);
}

TEST_F(ModelOfRunTest, OtherDegreesTakeWhatTheyTakeOnTheMachine) {
  const Scenario own = scenario_of_model(*run_, llama(), kNode);
  for (const plan::MeshSizes& mesh :
       {plan::MeshSizes{.shard = 2, .tensor = 2}, plan::MeshSizes{.shard = 1, .tensor = 4},
        plan::MeshSizes{.shard = 2, .context = 2}, plan::MeshSizes{.shard = 1, .context = 4}}) {
    EXPECT_TRUE(divides_otherwise(*run_, mesh));
    Scenario other = own;
    other.plan = on_mesh(own.plan, mesh);
    Prediction found = evaluate(other);
    Uncertainty(other.machine).add_to(other, found);
    Scenario there = truth_;
    there.plan = other.plan;
    const auto expected = static_cast<double>(evaluate(there).step.duration);
    // Products of unmeasured sizes take a line, without waves of tiles.
    EXPECT_NEAR(static_cast<double>(found.step.duration) / expected, 1, 0.15)
        << mesh.tensor << " " << mesh.context;
    ASSERT_TRUE(found.interval);
    EXPECT_LT(static_cast<double>(found.interval->low), expected);
    EXPECT_GT(static_cast<double>(found.interval->high), expected);
  }
}

TEST_F(ModelOfRunTest, RefusesAModelThatIsNotTheRuns) {
  const auto refusal = [this](const plan::ModelConfig& config) {
    return test::message_of<InputError>([&] { (void)scenario_of_model(*run_, config); });
  };
  EXPECT_THAT(refusal(llama("2816", "2048")),
              HasSubstr("'model.layers.0.mlp.gate_proj.weight' has 2097152 elements, and 2883584 "
                        "in the run"));
  EXPECT_THAT(refusal(llama(R"("num_hidden_layers": 2)", R"("num_hidden_layers": 3)")),
              HasSubstr("the run has no parameter 'model.layers.2."));
  EXPECT_THAT(refusal(llama(R"("num_hidden_layers": 2)", R"("num_hidden_layers": 1)")),
              HasSubstr("it has no parameter 'model.layers.1."));
}

// shardlens.record writes the config.json of a model of transformers next to the traces.
TEST(OwnModel, IsInTheDirectoryOfTheRun) {
  const std::filesystem::path recorded =
      std::filesystem::path(SHARDLENS_TEST_DATA) / "recorded_run";
  const test::TemporaryDirectory directory;
  const std::filesystem::path copy = directory.path() / "run";
  std::filesystem::copy(recorded, copy);
  const auto model_in = [&] { return own_model(*RecordedRun::open(std::span(&copy, 1))); };
  EXPECT_FALSE(model_in());
  std::ofstream(copy / "config.json") << kLlama;
  ASSERT_TRUE(model_in());
  EXPECT_EQ(model_in()->intermediate_size, 2816);
}

// Without a spec: collectives between two ranks were not measured.
TEST_F(ModelOfRunTest, SaysWhatWasNotMeasured) {
  Scenario other = scenario_of_model(*run_, llama());
  other.plan = on_mesh(other.plan, {.shard = 2, .tensor = 2});
  EXPECT_THAT(refusal_of(other), HasSubstr("between 2 ranks was measured"));
}

TEST(OnMesh, LeavesOutKeysOfTheAxisTensor) {
  plan::Plan plan;
  plan.mesh.tensor = 2;
  plan.tensor_parallel["**.q_proj"] = {};
  plan.sequence_parallel = false;
  plan.loss_parallel = true;
  EXPECT_EQ(on_mesh(plan, {.tensor = 4}).tensor_parallel.size(), 1U);
  const plan::Plan whole = on_mesh(plan, {.context = 2});
  EXPECT_TRUE(whole.tensor_parallel.empty());
  EXPECT_TRUE(whole.sequence_parallel);
  EXPECT_FALSE(whole.loss_parallel);
}

}  // namespace
}  // namespace shardlens::sim
