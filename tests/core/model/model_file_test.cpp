#include "core/model/model_file.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/model/step_workload.h"
#include "core/plan/ownership.h"
#include "core/plan/resolve.h"
#include "core/plan/unit_sizes.h"
#include "core/workload/optimizer_operators.h"
#include "core/workload/workload.h"

namespace shardlens::plan {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// Two linears of [4, 8] and [8, 4] in a list, and a head that shares the first one's weight.
json two_linears() {
  return json::parse(R"({"shardlens_model": 1, "name": "Two", "dtype": "fp32",
    "modules": [{"fqn": "", "class": "Two", "forward": true},
                {"fqn": "list", "class": "ModuleList", "forward": false},
                {"fqn": "list.0", "class": "Linear", "forward": true},
                {"fqn": "list.1", "class": "Linear", "forward": true},
                {"fqn": "head", "class": "Linear", "forward": true}],
    "parameters": [{"name": "list.0.weight", "shape": [8, 4], "dtype": "float32", "requires_grad": true},
                   {"name": "list.1.weight", "shape": [4, 8], "dtype": "float32", "requires_grad": true},
                   {"name": "scale", "shape": [4], "dtype": "float32", "requires_grad": true},
                   {"name": "head.weight", "shape": [8, 4], "dtype": "float32", "same_as": "list.0.weight"}]})");
}

// One product in each linear of the list, of `batch` rows: x0 [B, 4] -> x1 [B, 8] -> x2 [B, 4].
json step_of_batch(int batch) {
  const auto product = [&](int id, const std::string& phase, const std::string& module, int in,
                           int out, json forward) {
    return json{{"id", id},
                {"name", "aten::mm"},
                {"kind", "gemm"},
                {"phase", phase},
                {"module", module},
                {"inputs", {module == "list.0" ? 0 : 1}},
                {"outputs", {module == "list.0" ? 1 : 2}},
                {"saved", {module == "list.0" ? 0 : 1}},
                {"flops", 2 * batch * in * out},
                {"product", {1, batch, out, in}},
                {"forward", std::move(forward)}};
  };
  const auto tensor = [&](int id, int features) {
    return json{{"id", id}, {"bytes", 4 * batch * features}, {"dtype", "fp32"}, {"storage", id}};
  };
  return {{"batch", batch},
          {"seq", nullptr},
          {"tensors", {tensor(0, 4), tensor(1, 8), tensor(2, 4)}},
          {"operators",
           {product(0, "forward", "list.0", 4, 8, nullptr),
            product(1, "forward", "list.1", 8, 4, nullptr),
            product(2, "backward", "list.1", 8, 4, 1), product(3, "backward", "list.0", 4, 8, 0)}},
          {"order", {">list.0", "o0", "<list.0", ">list.1", "o1", "<list.1", "o2", "o3"}}};
}

ModelConfig parsed(const json& file) {
  return parse_model_config(file.dump(), "model.json");
}

TEST(ModelFileTest, HasTheModulesAndTiedNamesOfTheFile) {
  const ModuleTree tree = module_tree(parsed(two_linears()));
  ASSERT_EQ(tree.parameters.size(), 3U);
  EXPECT_EQ(tree.parameters[0].fqn, "list.0.weight");
  EXPECT_THAT(tree.parameters[0].aliases, ElementsAre("head.weight"));
  EXPECT_EQ(tree.parameters[1].numel, 32);
  EXPECT_EQ(tree.parameters[2].module, 0U);
  EXPECT_THAT(tree.blocks, ElementsAre(2U, 3U));
}

TEST(ModelFileTest, StepIsAffineInTheBatch) {
  json file = two_linears();
  file["steps"] = {step_of_batch(2), step_of_batch(4)};
  const ModelConfig config = parsed(file);
  const ResolvedPlan plan =
      resolve(parse_plan(R"({"version": 1, "units": [{"modules": "list.1"}, {"modules": ""}],
                     "mixed_precision": {"param_dtype": "bf16"}})",
                         "plan.json"),
              module_tree(config), 2);
  const Workload workload = step_workload(config, plan, {.batch = 7});
  ASSERT_EQ(workload.operators.size(), 5U);  // with the optimizer
  const Operator& first = workload.operators[0];
  EXPECT_EQ(first.m, 7);
  EXPECT_EQ(first.flops, 2 * 7 * 4 * 8);
  EXPECT_EQ(first.read, 7 * 4 * 2);  // bf16
  EXPECT_EQ(first.written, 7 * 8 * 2);
  EXPECT_EQ(first.saved, 7 * 4 * 2);
  EXPECT_EQ(workload.operators[1].unit, 1U);
  EXPECT_EQ(workload.operators[2].forward, 1);
  EXPECT_EQ(workload.operators[2].phase, Phase::kBackward);
  EXPECT_EQ(workload.operators[3].forward, 0);
}

// An operator that touches a part of its inputs says so; the bytes follow the plan's dtype as those
// of the tensors do.
TEST(ModelFileTest, TrafficOfTheFileTakesPrecedenceOverTensors) {
  json file = two_linears();
  file["steps"] = {step_of_batch(2), step_of_batch(4)};
  for (json& step : file["steps"]) {
    json& op = step["operators"][0];
    op["read_bytes"] = 8 * step["batch"].get<int>();
    op["written_bytes"] = 0;
  }
  const ModelConfig config = parsed(file);
  const ResolvedPlan plan = resolve(parse_plan(R"({"version": 1, "units": [{"modules": ""}],
                     "mixed_precision": {"param_dtype": "bf16"}})",
                                               "plan.json"),
                                    module_tree(config), 2);
  const Workload workload = step_workload(config, plan, {.batch = 6});
  EXPECT_EQ(workload.operators[0].read, 8 * 6 / 2);
  EXPECT_EQ(workload.operators[0].written, 0);
  EXPECT_EQ(workload.operators[1].read, 6 * 8 * 2);  // its whole input
}

// 3 · 128 rows over two experts: balanced 192 each, skewed 256 and 128.
TEST(ModelFileTest, SkewSpreadsTheRowsOfGroupedProducts) {
  json file = two_linears();
  file["experts"] = {{"count", 2}, {"per_token", 1}};
  file["steps"] = {step_of_batch(2)};
  json& op = file["steps"][0]["operators"][0];
  op["product"] = {2, 192, 8, 4};
  const auto workload = [&](const StepSettings& settings) {
    const ModelConfig config = parsed(file);
    const ResolvedPlan plan =
        resolve(parse_plan(R"({"version": 1, "units": [{"modules": ""}]})", "plan.json"),
                module_tree(config), 2);
    return step_workload(config, plan, settings);
  };
  EXPECT_THROW((void)workload({.batch = 2, .expert_skew = 20}), InputError);  // no such product
  op["kind"] = "grouped_gemm";
  EXPECT_EQ(workload({.batch = 2}).operators[0].batch, 2);
  const Operator skewed = workload({.batch = 2, .expert_skew = 20}).operators[0];
  EXPECT_EQ(skewed.batch, 1);
  EXPECT_EQ(skewed.m, 384);
  EXPECT_THROW((void)workload({.batch = 2, .expert_skew = -1}), InputError);
}

TEST(ModelFileTest, HooksWithoutStepsReduceEveryUnit) {
  const ModelConfig config = parsed(two_linears());
  const ResolvedPlan plan =
      resolve(parse_plan(R"({"version": 1, "units": [{"modules": "list.1"}, {"modules": ""}]})",
                         "plan.json"),
              module_tree(config), 2);
  const Workload workload = hooks_of_file(*config.file, plan);
  int ready = 0;
  for (const HookEvent& event : workload.hooks) {
    ready += event.hook == Hook::kGradsReady ? 1 : 0;
  }
  EXPECT_EQ(ready, 2);
}

// A model.json and plan.json that shardlens.record wrote (tests/python/recorded_training.py): tied
// embedding and head, three blocks, and a parameter of three elements on two ranks.
TEST(ModelFileTest, ReadsWhatTheRecorderWrites) {
  const std::string run = std::string(SHARDLENS_TEST_DATA) + "/recorded_run";
  const ModelConfig config = load_model_config(run + "/model.json");
  EXPECT_EQ(config.torch_type, "Model");
  EXPECT_EQ(config.dtype, DType::kF32);
  const ModuleTree tree = module_tree(config);
  EXPECT_EQ(tree.modules.size(), 13U);
  ASSERT_EQ(tree.parameters.size(), 14U);
  EXPECT_EQ(tree.parameters[0].fqn, "scale");
  EXPECT_THAT(tree.parameters[1].aliases, ElementsAre("head.weight"));
  EXPECT_EQ(tree.blocks.size(), 3U);
  const ResolvedPlan plan = resolve(load_plan(run + "/plan.json"), tree, 2);
  ASSERT_EQ(plan.units.size(), 4U);
  EXPECT_EQ(plan.units[3].fqn, "layers.2");
  // torch.chunk: two of three elements on the first rank.
  const Ownership ownership(plan);
  const ParameterPlace place{plan.units[0].parameters.at(0), 0, 0};
  EXPECT_EQ(ownership.part(place, 0).numel(), 2);
  EXPECT_EQ(ownership.part(place, 1).numel(), 1);
}

// A model that was trained in bf16 has shards in bf16; one that was only exported in bf16 need not.
TEST(ModelFileTest, ARecordedModelHasItsOwnDtypes) {
  json file = two_linears();
  for (json& parameter : file["parameters"]) {
    parameter["dtype"] = "bfloat16";
  }
  file["parameters"].erase(3);  // it is tied across units
  EXPECT_EQ(module_tree(parsed(file)).parameters[0].dtype, DType::kF32);
  const auto plan_of = [&file] {
    return resolve(parse_plan(R"({"version": 1, "layout": "per_parameter"})", "plan.json"),
                   module_tree(parsed(file)), 2);
  };
  const auto optimizer = [](const ResolvedPlan& plan) {
    return optimizer_operators(plan, unit_sizes(plan), StepSettings{}).front();
  };
  // The root has "scale": 2 of 4 elements, in each list half of 32.
  EXPECT_EQ(unit_sizes(plan_of())[0].sharded, 2 * 4);
  EXPECT_EQ(optimizer(plan_of()).read, 4 * (2 + 16 + 16) * 4);
  file["origin"] = {{"made_by", "shardlens.record"}};
  EXPECT_EQ(module_tree(parsed(file)).parameters[0].dtype, DType::kBF16);
  const ResolvedPlan trained = plan_of();
  EXPECT_EQ(unit_sizes(trained)[0].sharded, 2 * 2);
  EXPECT_EQ(unit_sizes(trained)[1].sharded, 16 * 2);
  EXPECT_EQ(optimizer(trained).read, 4 * (2 + 16 + 16) * 2);  // parameter, gradient, two states
  EXPECT_EQ(optimizer(trained).written, 3 * (2 + 16 + 16) * 2);
}

// FQNs of the blocks of a model with these modules; those without modules below them have a weight.
std::vector<std::string> blocks_of(
    const std::vector<std::pair<std::string, std::string>>& fqns_and_classes) {
  json file{{"shardlens_model", 1}, {"name", "M"}, {"modules", json::array()}};
  file["modules"].push_back({{"fqn", ""}, {"class", "M"}, {"forward", true}});
  for (const auto& [fqn, type] : fqns_and_classes) {
    const bool list = type == "ModuleList" || type == "ModuleDict";
    file["modules"].push_back({{"fqn", fqn}, {"class", type}, {"forward", !list}});
    if (!list && type != "Sequential") {
      file["parameters"].push_back(
          {{"name", fqn + ".weight"}, {"shape", {2, 2}}, {"dtype", "float32"}});
    }
  }
  const ModuleTree tree = module_tree(parsed(file));
  std::vector<std::string> out;
  for (const uint32_t block : tree.blocks) {
    out.push_back(tree.modules[block].fqn);
  }
  return out;
}

TEST(ModelFileTest, BlocksAreTheMembersOfListsAndOfDictionariesThatAreLists) {
  // torchtitan: layers by number, with lists of their own.
  EXPECT_THAT(blocks_of({{"layers", "ModuleDict"},
                         {"layers.0", "Block"},
                         {"layers.0.experts", "ModuleList"},
                         {"layers.0.experts.0", "Linear"},
                         {"layers.0.experts.1", "Linear"},
                         {"layers.1", "MoEBlock"},
                         {"head", "Linear"}}),
              ElementsAre("layers.0", "layers.1"));
  // nanoGPT: the parts of a model, one of which is the list.
  EXPECT_THAT(blocks_of({{"transformer", "ModuleDict"},
                         {"transformer.wte", "Embedding"},
                         {"transformer.h", "ModuleList"},
                         {"transformer.h.0", "Block"},
                         {"transformer.h.1", "Block"},
                         {"transformer.ln_f", "LayerNorm"}}),
              ElementsAre("transformer.h.0", "transformer.h.1"));
  // Two towers with lists, and two members that are alike.
  EXPECT_THAT(blocks_of({{"towers", "ModuleDict"},
                         {"towers.image", "Tower"},
                         {"towers.image.layers", "ModuleList"},
                         {"towers.image.layers.0", "Block"},
                         {"towers.image.layers.1", "Block"},
                         {"towers.text", "Tower"},
                         {"towers.text.layers", "ModuleList"},
                         {"towers.text.layers.0", "Block"},
                         {"towers.text.layers.1", "Block"}}),
              ElementsAre("towers.image.layers.0", "towers.image.layers.1", "towers.text.layers.0",
                          "towers.text.layers.1"));
  EXPECT_THAT(blocks_of({{"m", "ModuleDict"}, {"m.first", "Block"}, {"m.second", "Block"}}),
              ElementsAre("m.first", "m.second"));
  EXPECT_THAT(blocks_of({{"m", "ModuleDict"}, {"m.encoder", "A"}, {"m.decoder", "B"}}),
              ElementsAre());
}

TEST(ModelFileTest, AListOfOneIsABlockWhereThereIsNoOther) {
  EXPECT_THAT(blocks_of({{"embed", "Embedding"}, {"layers", "ModuleList"}, {"layers.0", "Block"}}),
              ElementsAre("layers.0"));
  EXPECT_THAT(blocks_of({{"layers", "ModuleDict"}, {"layers.7", "Block"}}),
              ElementsAre("layers.7"));
  EXPECT_THAT(blocks_of({{"one", "ModuleList"},
                         {"one.0", "Block"},
                         {"layers", "ModuleList"},
                         {"layers.0", "Block"},
                         {"layers.1", "Block"}}),
              ElementsAre("layers.0", "layers.1"));
  EXPECT_THAT(blocks_of({{"one", "Linear"}}), ElementsAre());
}

TEST(ModelFileTest, AModuleEndsAfterThoseThatBeganInIt) {
  const auto message = [](json order) {
    json file = two_linears();
    file["steps"] = {step_of_batch(2)};
    file["steps"][0]["order"] = std::move(order);
    try {
      (void)parsed(file);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message({">list.0", ">list.1", "<list.1", "<list.0"}), "accepted");
  EXPECT_THAT(message({">list.0", ">list.1", "<list.0"}),
              HasSubstr("#/steps/0/order/2: expected the end of 'list.1'"));
  EXPECT_THAT(message({">", "<list.0"}), HasSubstr("#/steps/0/order/1: expected the end of ''"));
  EXPECT_THAT(message({"<list.0"}), HasSubstr("ends that did not begin"));
  EXPECT_THAT(message({">list.0"}), HasSubstr("'list.0' begins and does not end"));
}

TEST(ModelFileTest, MessagesSayWhatIsMissing) {
  const auto message = [](const json& file, const StepSettings& settings) {
    try {
      const ModelConfig config = parsed(file);
      const ResolvedPlan plan =
          resolve(parse_plan(R"({"version": 1, "units": [{"modules": ""}]})", "plan.json"),
                  module_tree(config), 2);
      (void)step_workload(config, plan, settings);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  json file = two_linears();
  file.erase("steps");
  EXPECT_THAT(message(file, {.batch = 2}), HasSubstr("model.json: has no \"steps\""));
  file["steps"] = {step_of_batch(2)};
  EXPECT_THAT(message(file, {.batch = 3}), HasSubstr("only batch 2 was recorded"));
  file["steps"][0]["seq"] = 16;
  EXPECT_THAT(message(file, {.batch = 2, .seq = 8}),
              HasSubstr("seq 8 was not recorded; expected 16, or a file that shardlens.export made "
                        "with --seq 8"));
  file["steps"][0]["order"][1] = "o9";
  EXPECT_THAT(message(file, {.batch = 2}), HasSubstr("#/steps/0/order/1"));
  file["steps"] = {step_of_batch(2)};
  file["steps"][0]["operators"][1]["product"] = {1, 1LL << 30, 1LL << 30, 4};
  EXPECT_THAT(message(file, {.batch = 2}),
              HasSubstr("#/steps/0/operators/1/product: batch x m x n x k is more than"));
  file = two_linears();
  file["modules"][3]["fqn"] = "other.1";
  EXPECT_THAT(message(file, {.batch = 2}), HasSubstr("#/modules/3/fqn"));
}

}  // namespace
}  // namespace shardlens::plan
