#include "sim/advise/plan_changes.h"

#include <algorithm>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plan/resolve.h"

namespace shardlens::sim {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Scenario scenario_of(const char* strategy, int64_t ranks, plan::StepSettings step = {}) {
  Scenario out;
  out.model = std::make_shared<const ScenarioModel>(plan::parse_model_config(
      R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
          "num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 1000,
          "max_position_embeddings": 128})",
      "test"));
  out.plan = plan::strategy_plan(strategy, out.model->tree());
  out.world_size = ranks;
  out.step = step;
  out.step.seq = 64;
  out.machine = std::make_shared<const TargetMachine>(load_hardware("8xH100"));
  return out;
}

std::vector<plan::PlanEdit> changes_of(const Scenario& scenario) {
  return single_changes(scenario,
                        plan::resolve(scenario.plan, scenario.model->tree(), scenario.world_size));
}

std::vector<std::string> titles_of(const Scenario& scenario) {
  std::vector<std::string> out;
  for (const plan::PlanEdit& each : changes_of(scenario)) {
    out.push_back(each.title);
  }
  return out;
}

const plan::PlanEdit& find(const std::vector<plan::PlanEdit>& changes, std::string_view title) {
  const auto at = std::find_if(changes.begin(), changes.end(),
                               [title](const plan::PlanEdit& each) { return each.title == title; });
  if (at == changes.end()) {
    throw std::runtime_error("no change " + std::string(title));
  }
  return *at;
}

plan::ResolvedPlan with(Scenario scenario, const plan::PlanEdit& change) {
  make(change, scenario);
  return plan::resolve(scenario.plan, scenario.model->tree(), scenario.world_size);
}

TEST(PlanChanges, EachChangesThePlanOrTheStepAndCanBeSimulated) {
  for (const char* strategy :
       {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "replicate"}) {
    const Scenario own = scenario_of(strategy, 8, {.batch = 2, .accumulate = 2});
    std::set<std::string> ids;
    for (const plan::PlanEdit& change : changes_of(own)) {
      EXPECT_TRUE(ids.insert(change.id).second && !change.id.empty()) << change.title;
      Scenario changed = own;
      make(change, changed);
      EXPECT_FALSE(changed.plan == own.plan && changed.step == own.step)
          << strategy << ": " << change.title;
      EXPECT_EQ(refusal_of(changed), "") << strategy << ": " << change.title;
      EXPECT_EQ(changed.step.samples(), own.step.samples()) << change.title;
      EXPECT_FALSE(change.pytorch.empty()) << change.title;
    }
  }
}

// A change that the plan already has is not listed: after it is made, its title is gone.
TEST(PlanChanges, AreNotListedOnceMade) {
  const Scenario own = scenario_of("full_shard", 8, {.batch = 2, .accumulate = 2});
  for (const plan::PlanEdit& change : changes_of(own)) {
    Scenario changed = own;
    make(change, changed);
    EXPECT_THAT(titles_of(changed), Not(Contains(change.title)));
  }
}

TEST(PlanChanges, FullyShardedModel) {
  EXPECT_THAT(
      titles_of(scenario_of("full_shard", 2)),
      ElementsAre("keep parameters after forward",
                  "keep the parameters of model.layers.5 after forward",
                  "keep the parameters of the last 3 units after forward",
                  "prefetch the next unit in forward", "prefetch the next 2 units in forward",
                  "a communicator of its own for reduce-scatter", "2 reductions in flight",
                  "2 blocks a unit", "4 blocks a unit", "the model as one unit",
                  "model.embed_tokens, lm_head as units of their own",
                  "not sharded: 2 replicas, each with all parameters",
                  "replicate the model instead of sharding it", "checkpoint every block",
                  "checkpoint every second block"));
}

TEST(PlanChanges, ReduceScattersMayHaveTheirOwnCommunicator) {
  Scenario own = scenario_of("full_shard", 2);
  const std::string title = "a communicator of its own for reduce-scatter";
  const auto changes = changes_of(own);
  EXPECT_TRUE(with(own, find(changes, title)).plan.separate_reduce_scatter_group);
  EXPECT_THAT(find(changes, title).pytorch,
              ElementsAre(HasSubstr("model.set_separate_reduce_scatter_group(True)")));
  own.plan.separate_reduce_scatter_group = true;
  EXPECT_THAT(titles_of(own), Not(Contains(title)));
}

TEST(PlanChanges, SeveralReductionsMayBeInFlight) {
  Scenario own = scenario_of("full_shard", 2);
  const std::string title = "2 reductions in flight";
  const auto changes = changes_of(own);
  EXPECT_EQ(find(changes, title).id, "reduction_inputs=2");
  EXPECT_EQ(with(own, find(changes, title)).plan.reduce_scatter_max_input_buffers, 2);
  EXPECT_THAT(find(changes, title).pytorch,
              ElementsAre(HasSubstr("model.set_reduce_scatter_max_input_buffers(2)")));
  own.plan.reduce_scatter_max_input_buffers = 3;
  EXPECT_THAT(titles_of(own), Not(Contains(title)));
  own.plan.reduce_scatter_max_input_buffers = 1;
  own.plan.dialect = plan::Dialect::kFsdp1;  // which has no such setting
  EXPECT_THAT(titles_of(own), Not(Contains(title)));
}

// An embedding that is a unit of its own is gathered in backward without use. One that the root has
// is not freed after forward, and one whose weight the head has too is read there.
TEST(PlanChanges, EmbeddingsNeedNoGatherInBackward) {
  const std::string title = "no gather of model.embed_tokens in backward";
  Scenario own = scenario_of("full_shard", 2);
  EXPECT_THAT(titles_of(own), Not(Contains(title)));
  own.plan.units.push_back({.globs = {"model.embed_tokens"}});
  own.plan.units.push_back({.globs = {"lm_head"}});
  const auto changes = changes_of(own);
  const plan::PlanEdit& change = find(changes, title);
  EXPECT_EQ(change.id, "unshard_backward=no");
  EXPECT_THAT(change.pytorch, ElementsAre("for name in (\"model.embed_tokens\",):",
                                          HasSubstr(".set_unshard_in_backward(False)")));
  Scenario changed = own;
  make(change, changed);
  EXPECT_THAT(titles_of(changed), Not(Contains(title)));
  // One all-gather less, that of the embedding in backward.
  const auto gathers = [](const Scenario& scenario) {
    int out = 0;
    const Prediction now = evaluate(scenario);
    for (const schedule::PlannedAction& each : now.priced.planned->actions) {
      out += each.action.op == schedule::Op::kAllGather ? 1 : 0;
    }
    return out;
  };
  EXPECT_EQ(gathers(changed), gathers(own) - 1);
  own.model = std::make_shared<const ScenarioModel>(plan::parse_model_config(
      R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
          "num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 1000,
          "max_position_embeddings": 128, "tie_word_embeddings": true})",
      "test"));
  own.plan.units.pop_back();
  own.plan.units.back() = {.globs = {"model.embed_tokens", "lm_head"}, .grouped = true};
  EXPECT_THAT(titles_of(own), Not(Contains(HasSubstr("in backward"))));
}

TEST(PlanChanges, ReplicatedModelHasBuckets) {
  EXPECT_THAT(titles_of(scenario_of("replicate", 2)),
              ElementsAre("buckets of 10 MiB", "buckets of 50 MiB", "buckets of 100 MiB",
                          "checkpoint every block", "checkpoint every second block"));
}

TEST(PlanChanges, MicrobatchesKeepTheNumberOfSamples) {
  const std::vector<std::string> titles =
      titles_of(scenario_of("full_shard", 2, {.batch = 4, .accumulate = 3}));
  EXPECT_THAT(titles, Contains("microbatches of 2 (6 a step)"));
  EXPECT_THAT(titles, Contains("microbatches of 12 (1 a step)"));
  EXPECT_THAT(titles, Contains("reduce gradients only in the last microbatch"));
}

TEST(PlanChanges, KeepingTheLastUnitsLeavesTheOthers) {
  const Scenario own = scenario_of("full_shard", 8);
  const auto changes = changes_of(own);
  const plan::ResolvedPlan kept =
      with(own, find(changes, "keep the parameters of the last 3 units after forward"));
  std::vector<bool> keeps;
  for (size_t i = 1; i < kept.units.size(); ++i) {
    keeps.push_back(kept.units[i].reshard_after_forward.kind == plan::Reshard::Kind::kNo);
  }
  EXPECT_THAT(keeps, ElementsAre(false, false, false, true, true, true));
}

// Two changes of different subjects can be made one after the other.
TEST(PlanChanges, OfDifferentSubjectsCombine) {
  const Scenario own = scenario_of("full_shard", 8, {.batch = 2, .accumulate = 2});
  const auto changes = changes_of(own);
  for (const plan::PlanEdit& first : changes) {
    for (const plan::PlanEdit& second : changes) {
      if (!plan::exclude_each_other(first.key, second.key)) {
        Scenario changed = own;
        make(first, changed);
        make(second, changed);
        EXPECT_EQ(refusal_of(changed), "") << first.title << "; " << second.title;
      }
    }
  }
}

// The ranks of tensor parallelism are the innermost dimension of the mesh, and stay.
TEST(PlanChanges, TheMeshKeepsTensorParallelism) {
  Scenario own = scenario_of("full_shard", 8);
  own.plan.mesh.tensor = 2;
  const std::vector<plan::PlanEdit> changes = changes_of(own);
  const auto& lines = find(changes, "2 replicas of 2 shards").pytorch;
  EXPECT_THAT(lines, Contains(HasSubstr("init_device_mesh(device, (2, 2, 2)")));
  EXPECT_THAT(lines, Contains(HasSubstr("mesh=mesh[\"replicate\", \"shard\"]")));
  EXPECT_TRUE(std::ranges::none_of(changes, [](const plan::PlanEdit& each) {
    return each.title == "replicate the model instead of sharding it";
  }));
}

// Experts over 4 of 8 ranks: a replica has at least 4 ranks, and experts stay on their mesh.
TEST(PlanChanges, ExpertsStayOnTheirMesh) {
  Scenario own = scenario_of("full_shard", 8);
  own.plan.layout = plan::Layout::kPerParameter;
  own.plan.mesh.expert = 4;
  own.plan.units.push_back({.globs = {"model.layers.*.mlp.up_proj"}, .groups = {{.expert = true}}});
  const std::vector<std::string> titles = titles_of(own);
  EXPECT_THAT(titles, Contains("2 replicas of 4 shards"));
  EXPECT_THAT(titles, testing::Not(Contains("4 replicas of 2 shards")));
  EXPECT_THAT(titles, testing::Not(Contains("not sharded: 8 replicas, each with all parameters")));
  const std::vector<plan::PlanEdit> changes = changes_of(own);
  const plan::ResolvedPlan one =
      with(own, find(changes, "the model as one unit, experts as their own"));
  ASSERT_EQ(one.units.size(), 7U);  // the root, and the experts of six layers
  for (size_t i = 1; i < one.units.size(); ++i) {
    EXPECT_EQ(one.groups[one.units[i].gather].name, "expert_shard");
    EXPECT_EQ(one.layout(static_cast<UnitId>(i)).ranks(), 2);
  }
}

TEST(PlanChanges, ReplicasOnlyAreAMeshOfFsdp2) {
  Scenario own = scenario_of("full_shard", 8);
  const std::string title = "not sharded: 8 replicas, each with all parameters";
  const auto changes = changes_of(own);
  const plan::ResolvedPlan replicas = with(own, find(changes, title));
  EXPECT_EQ(replicas.replicas(), 8);
  EXPECT_EQ(replicas.shards(), 1);
  EXPECT_EQ(replicas.units.size(), 7U);
  EXPECT_THAT(find(changes, title).pytorch, Contains(HasSubstr("init_device_mesh(device, (8, 1)")));
  own.plan.dialect = plan::Dialect::kFsdp1;
  EXPECT_THAT(titles_of(own), Not(Contains(title)));
}

TEST(PlanChanges, Fsdp1HasItsOwnLines) {
  Scenario own = scenario_of("full_shard", 8);
  own.plan.dialect = plan::Dialect::kFsdp1;
  const auto changes = changes_of(own);
  EXPECT_THAT(find(changes, "keep parameters after forward").pytorch,
              ElementsAre("FullyShardedDataParallel(..., "
                          "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)"));
  EXPECT_THAT(titles_of(own), Not(Contains("prefetch the next 2 units in forward")));
  // One process group is all that FSDP1 has.
  EXPECT_THAT(titles_of(own), Not(Contains("a communicator of its own for reduce-scatter")));
}

Scenario scenario_of_file(const std::string& modules, const std::string& parameters) {
  Scenario out;
  out.model = std::make_shared<const ScenarioModel>(plan::parse_model_config(
      R"({"shardlens_model": 1, "name": "M", "modules": [{"fqn": "", "class": "M"}, )" + modules +
          R"(], "parameters": [)" + parameters + "]}",
      "model.json"));
  out.plan = plan::strategy_plan("full_shard", out.model->tree());
  out.world_size = 2;
  out.machine = std::make_shared<const TargetMachine>(load_hardware("8xH100"));
  return out;
}

// No change of units of blocks, and no checkpoint, is listed for a model without them.
TEST(PlanChanges, OfAModelWithoutBlocks) {
  Scenario own = scenario_of_file(R"({"fqn": "a", "class": "Linear"}, {"fqn": "b", "class": "B"})",
                                  R"({"name": "a.weight", "shape": [8, 8], "dtype": "float32"},
                                     {"name": "b.weight", "shape": [8, 8], "dtype": "float32"})");
  ASSERT_TRUE(own.model->tree().blocks.empty());
  for (const char* units :
       {R"([{"modules": ""}])", R"([{"modules": "a"}, {"modules": ""}])",
        R"([{"modules": "a", "api": "replicate"}, {"modules": "", "api": "replicate"}])"}) {
    own.plan =
        plan::parse_plan(std::string(R"({"version": 1, "units": )") + units + "}", "plan.json");
    for (const plan::PlanEdit& change : changes_of(own)) {
      (void)with(own, change);
    }
    EXPECT_THAT(titles_of(own), Each(Not(HasSubstr("block"))));
  }
  own.plan =
      plan::parse_plan(R"({"version": 1, "units": [{"modules": "a"}, {"modules": ""}]})", "");
  EXPECT_THAT(titles_of(own), Contains("the model as one unit"));
}

// torchtitan has its blocks in a ModuleDict, whose iterator gives names.
TEST(PlanChanges, LinesTakeTheBlocksOfAnyList) {
  const auto lines = [](const char* list, const char* first) {
    const std::string name = list;
    Scenario own = scenario_of_file(
        R"({"fqn": ")" + name + R"(", "class": "ModuleDict", "forward": false},)" + R"({"fqn": ")" +
            name + "." + first + R"(", "class": "Block"}, {"fqn": ")" + name +
            R"(.1", "class": "Block"})",
        R"({"name": ")" + name + "." + first +
            R"(.w", "shape": [8], "dtype": "float32"}, {"name": ")" + name +
            R"(.1.w", "shape": [8], "dtype": "float32"})");
    own.plan.units = {plan::UnitEntry{.globs = {""}}};
    return find(changes_of(own), "one block a unit").pytorch;
  };
  EXPECT_THAT(lines("layers", "0"),
              ElementsAre("blocks = list(model.get_submodule(\"layers\").children())",
                          "for block in blocks:", "    fully_shard(block)", "fully_shard(model)"));
  EXPECT_EQ(lines("a\\\"b", "0").front(),
            "blocks = list(model.get_submodule(\"a\\\"b\").children())");
}

}  // namespace
}  // namespace shardlens::sim
