#include "core/edits/framework_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/edits/plan_edits.h"
#include "core/json/json_reader.h"
#include "core/model/model_config.h"
#include "core/plan/accelerate_plan.h"
#include "core/plan/resolve.h"

namespace shardlens::plan {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

ModuleTree llama() {
  return module_tree(load_model_config(std::string(SHARDLENS_TEST_DATA) + "/llama-tiny"));
}

PlanEdits edits_of_llama(Dialect dialect = Dialect::kFsdp2) {
  return {llama(), 8, dialect};
}

FrameworkProgram program(Framework framework, Dialect dialect = Dialect::kFsdp2) {
  return {framework, dialect, 8, "LlamaDecoderLayer"};
}

TEST(FrameworkSettingsTest, EachFrameworkHasAName) {
  for (const auto framework : {Framework::kPytorch, Framework::kAccelerate,
                               Framework::kTransformers, Framework::kTorchtitan}) {
    EXPECT_EQ(framework_named(name_of(framework)), framework);
  }
  EXPECT_EQ(framework_named("other"), std::nullopt);
}

// torchtitan 0.2.2, config/job_config.py: Parallelism, ActivationCheckpoint, Training.
TEST(FrameworkSettingsTest, OfTorchtitansJobConfig) {
  const FrameworkProgram titan = program(Framework::kTorchtitan);
  EXPECT_THAT(framework_settings(titan, edits_of_llama().reshard(Reshard::Kind::kNo)),
              ElementsAre("[parallelism]", "fsdp_reshard_after_forward = \"never\""));
  EXPECT_THAT(framework_settings(titan, edits_of_llama().checkpoints(2)),
              ElementsAre("[activation_checkpoint]", "mode = \"selective\"",
                          "selective_ac_option = \"2\""));
  EXPECT_THAT(framework_settings(titan, edits_of_llama().mesh(2, 4, 1)),
              ElementsAre("[parallelism]", "data_parallel_replicate_degree = 2",
                          "data_parallel_shard_degree = 4"));
  // Four microbatches of two samples on each of eight ranks.
  EXPECT_THAT(framework_settings(titan, edits_of_llama().microbatches(2, 4)),
              ElementsAre("[training]", "local_batch_size = 2", "global_batch_size = 64"));
  EXPECT_THAT(framework_settings(titan, edits_of_llama().forward_prefetch(1)), IsEmpty());
}

TEST(FrameworkSettingsTest, OfTransformersTrainingArguments) {
  const FrameworkProgram trainer = program(Framework::kTransformers);
  EXPECT_THAT(
      framework_settings(trainer, edits_of_llama().reshard(Reshard::Kind::kNo)),
      ElementsAre("TrainingArguments(..., fsdp_config={..., \"reshard_after_forward\": False})"));
  EXPECT_THAT(framework_settings(trainer, edits_of_llama().units(1, {})),
              ElementsAre("TrainingArguments(..., fsdp_config={..., \"auto_wrap_policy\": "
                          "\"TRANSFORMER_BASED_WRAP\", \"transformer_layer_cls_to_wrap\": "
                          "[\"LlamaDecoderLayer\"]})"));
  EXPECT_THAT(framework_settings(trainer, edits_of_llama().microbatches(2, 4)),
              ElementsAre("TrainingArguments(..., per_device_train_batch_size=2, "
                          "gradient_accumulation_steps=4)"));
}

// The reader of accelerate's files finds the changed plan in the lines of each edit that the
// catalogue has for it.
TEST(FrameworkSettingsTest, AccelerateReadsTheChangedPlanFromThem) {
  const ModuleTree tree = llama();
  const auto plan_of = [&tree](const std::vector<std::string>& lines, Dialect dialect) {
    std::string text = R"({"distributed_type": "FSDP", "num_processes": 8, "fsdp_config": {)";
    const char* separator = "";
    for (const std::string& line : lines) {
      if (line.ends_with(':')) {
        continue;
      }
      const size_t name = line.find_first_not_of(' '), colon = line.find(": ");
      text += separator + ("\"" + line.substr(name, colon - name) + "\": \"") +
              line.substr(colon + 2) + "\"";
      separator = ", ";
    }
    text += std::string(separator) +
            (dialect == Dialect::kFsdp1 ? R"("fsdp_version": 1}})" : R"("fsdp_version": 2}})");
    const std::string source = "test";
    const nlohmann::json document = nlohmann::json::parse(text);
    return plan_of_accelerate(JsonNode(document, source), tree).plan;
  };
  const FrameworkProgram second = program(Framework::kAccelerate);
  const Plan kept = plan_of(
      framework_settings(second, edits_of_llama().reshard(Reshard::Kind::kNo)), Dialect::kFsdp2);
  EXPECT_EQ(resolve(kept, tree, 8).units.back().reshard_after_forward.kind, Reshard::Kind::kNo);
  const Plan blocks =
      plan_of(framework_settings(second, edits_of_llama().units(1, {})), Dialect::kFsdp2);
  std::vector<std::string> units;  // accelerate adds one of the embedding and one of the head
  for (const Unit& unit : resolve(blocks, tree, 8).units) {
    units.push_back(unit.fqn);
  }
  for (const uint32_t block : tree.blocks) {
    EXPECT_THAT(units, Contains(tree.modules[block].fqn));
  }
  // Of a file that has the wrapped classes.
  std::vector<std::string> lines = framework_settings(second, edits_of_llama().units(1, {}));
  for (const std::string& line : framework_settings(second, edits_of_llama().checkpoints(1))) {
    lines.push_back(line);
  }
  EXPECT_EQ(resolve(plan_of(lines, Dialect::kFsdp2), tree, 8).checkpointed_modules, tree.blocks);
  const FrameworkProgram first = program(Framework::kAccelerate, Dialect::kFsdp1);
  EXPECT_EQ(
      plan_of(framework_settings(first, edits_of_llama().forward_prefetch(1)), Dialect::kFsdp1)
          .forward_prefetch,
      1);
  const Plan grad_op = plan_of(
      framework_settings(first, edits_of_llama().reshard(Reshard::Kind::kNo)), Dialect::kFsdp1);
  EXPECT_EQ(resolve(grad_op, tree, 8).units.back().reshard_after_forward.kind, Reshard::Kind::kNo);
}

}  // namespace
}  // namespace shardlens::plan
