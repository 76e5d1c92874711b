#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/shardlens_command.h"

namespace shardlens {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kData = SHARDLENS_TEST_DATA;

class PlanCommandTest : public ShardlensCommandTest {
 protected:
  std::string file(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }

  json json_of(const std::string& arguments) {
    const CommandResult result = run(arguments + " --json");
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return json::parse(result.out);
  }
};

// llama-tiny, computed by hand: blocks of 45 440 parameters, 32 832 in the root; three ranks.
TEST_F(PlanCommandTest, JsonHasThePinnedShape) {
  const json out = json_of("plan --model " + kData + "/llama-tiny --world-size 3");
  EXPECT_EQ(out.size(), 7U);
  EXPECT_EQ(out["schema"], 1);
  EXPECT_EQ(out["mesh"],
            (json{{"replicate", 1}, {"shard", 3}, {"context", 1}, {"tensor", 1}, {"expert", 1}}));
  EXPECT_EQ(out["groups"], (json{{{"name", "shard"}, {"ranks", 3}, {"stride", 1}}}));
  ASSERT_EQ(out["units"].size(), 5U);
  EXPECT_EQ(out["units"][0], (json{{"fqn", ""},
                                   {"parameters", 32832},
                                   {"bytes", 131328},
                                   {"padding_bytes", 0},
                                   {"shard_bytes", 43776}}));
  EXPECT_EQ(out["units"][1], (json{{"fqn", "model.layers.0"},
                                   {"parameters", 45440},
                                   {"bytes", 181760},
                                   {"padding_bytes", 4},
                                   {"shard_bytes", 60588}}));
  ASSERT_EQ(out["ranks"].size(), 3U);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(out["ranks"][rank], (json{{"rank", rank}, {"parameter_bytes", 43776 + 4 * 60588}}));
  }
  constexpr int kRoot = 131328, kBlocks = 4 * (181760 + 4);
  EXPECT_EQ(out["collectives"],
            (json{{"all_gather", {{"count", 9}, {"bytes", kRoot + 2 * kBlocks}}},
                  {"reduce_scatter", {{"count", 5}, {"bytes", kRoot + kBlocks}}}}));
}

TEST_F(PlanCommandTest, GroupsHaveTheirRanks) {
  const std::string plan = file("kept.json", R"({"version": 1, "mesh": {"replicate": 2},
    "units": [{"modules": ""}, {"modules": "model.layers.0", "reshard_after_forward": 2},
              {"modules": "model.layers.1", "reshard_after_forward": 4},
              {"modules": "model.layers.2"}, {"modules": "model.layers.3"}]})");
  const std::string command =
      "plan --model " + kData + "/llama-tiny --world-size 16 --plan " + plan;
  const json out = json_of(command + " --actions");
  EXPECT_EQ(out["mesh"],
            (json{{"replicate", 2}, {"shard", 8}, {"context", 1}, {"tensor", 1}, {"expert", 1}}));
  EXPECT_EQ(out["groups"], (json{{{"name", "shard"}, {"ranks", 8}, {"stride", 1}},
                                 {{"name", "replicate"}, {"ranks", 2}, {"stride", 8}},
                                 {{"name", "sub_shard2"}, {"ranks", 2}, {"stride", 1}},
                                 {{"name", "sub_shard4"}, {"ranks", 4}, {"stride", 1}}}));
  std::map<std::string, int> gathers, others;
  for (const json& action : out["actions"]) {
    if (action["op"] == "all_gather" && action["hook"] != "root_pre_forward") {
      ++gathers[action["unit"].get<std::string>() + " " + action["group"].get<std::string>()];
    } else if (!action["group"].is_null()) {
      ++others[action["op"].get<std::string>() + " " + action["group"].get<std::string>()];
    }
  }
  EXPECT_EQ(gathers["model.layers.0 sub_shard2"], 1);
  EXPECT_EQ(gathers["model.layers.1 sub_shard4"], 1);
  EXPECT_EQ(others["reduce_scatter shard"], 5);
  EXPECT_EQ(others["all_reduce replicate"], 5);
  const std::string text = run(command).out;
  EXPECT_THAT(text, HasSubstr("process groups"));
  EXPECT_THAT(text, testing::ContainsRegex("replicate +2 +8 +8 +0 8\n"));
  EXPECT_THAT(text, testing::ContainsRegex("sub_shard4 +4 +1 +4 +0 1 2 3\n"));
}

// All-gathers G + (G - 1), reduce-scatters G, with the root kept.
// A program that was recorded while it trained in bf16.
TEST_F(PlanCommandTest, RecordedShardsHaveTheDtypeOfTheProgram) {
  const std::string model = file("model.json", R"({"shardlens_model": 1, "name": "One",
    "dtype": "bfloat16", "origin": {"made_by": "shardlens.record 1"},
    "modules": [{"fqn": "", "class": "One"}, {"fqn": "a", "class": "Linear"}],
    "parameters": [{"name": "a.weight", "shape": [64, 32], "dtype": "bfloat16"}]})");
  const json out = json_of("plan --world-size 2 --model " + model);
  EXPECT_EQ(out["units"][0]["parameters"], 2048);
  EXPECT_EQ(out["units"][0]["bytes"], 4096);
  EXPECT_EQ(out["units"][0]["shard_bytes"], 2048);
  EXPECT_EQ(out["ranks"][0]["parameter_bytes"], 2048);
  EXPECT_THAT(run("plan --model " + model).out, HasSubstr("; shards in bf16"));
}

TEST_F(PlanCommandTest, ActionsCountCollectivesAsPyTorchDoes) {
  const auto counts = [this](const std::string& flags) {
    std::map<std::string, int> out;
    uint32_t seq = 0;
    const json parsed = json_of("plan --model " + kData + "/gpt2-tiny --actions " + flags);
    for (const json& action : parsed["actions"]) {
      EXPECT_EQ(action.size(), 8U);
      EXPECT_EQ(action["seq"], ++seq);
      EXPECT_TRUE(action["hook"].is_string() && action["hook_unit"].is_string() &&
                  action["stream"].is_string() && action["cause"].is_string());
      ++out[action["op"]];
    }
    return out;
  };
  auto full = counts("");
  EXPECT_EQ(full["all_gather"], 5 + 4);
  EXPECT_EQ(full["reduce_scatter"], 5);
  EXPECT_EQ(full["all_reduce"], 0);
  auto grad_op = counts("--strategy shard_grad_op");
  EXPECT_EQ(grad_op["all_gather"], 5);
  EXPECT_EQ(grad_op["reduce_scatter"], 5);
  auto none = counts("--strategy no_shard");
  EXPECT_EQ(none["all_gather"], 0);
  EXPECT_EQ(none["reduce_scatter"], 0);
  EXPECT_EQ(none["all_reduce"], 5);
  auto accumulated = counts("--accumulate 3");
  EXPECT_EQ(accumulated["all_gather"], 3 * (5 + 4));
  EXPECT_EQ(accumulated["reduce_scatter"], 3 * 5);
  auto no_sync = counts("--accumulate 3 --no-sync");
  EXPECT_EQ(no_sync["all_gather"], 3 * (5 + 4));
  EXPECT_EQ(no_sync["reduce_scatter"], 5);
  auto hybrid = counts("--strategy hybrid_shard --world-size 4");
  EXPECT_EQ(hybrid["reduce_scatter"], 5);
  EXPECT_EQ(hybrid["all_reduce"], 5);
}

TEST_F(PlanCommandTest, PlanFilesAndMeshesApply) {
  const std::string plan =
      file("plan.json", R"({"version": 1, "units": [{"modules": "model.layers.*"}, {"modules": ""}],
                                                "mesh": {"replicate": 2, "shard": 4}})");
  EXPECT_EQ(json_of("plan --model " + kData + "/llama-tiny --plan " + plan)["ranks"].size(), 8U);
  EXPECT_EQ(json_of("plan --model " + kData + "/llama-tiny --mesh 2x2")["units"][0]["shard_bytes"],
            131328 / 2);
}

class PlanParametersTest : public PlanCommandTest {
 protected:
  // embed_tokens [6, 5], fc1 [7, 5] and [7], fc2 [5, 7] and [5].
  std::string model(bool tied) {
    return file("mlp.json", json{{"model_type", "mlp"},
                                 {"vocab_size", 6},
                                 {"hidden_size", 5},
                                 {"num_hidden_layers", 1},
                                 {"intermediate_size", 7},
                                 {"tie_word_embeddings", tied}}
                                .dump());
  }
  std::string plan(const std::string& more, bool tied = true) {
    return "plan --parameters --model " + model(tied) + " --plan " +
           file("plan.json", R"({"version": 1)" + more + "}");
  }
  static json held(std::vector<int> ranks, std::vector<int> elements, std::vector<int> bytes) {
    return {{"ranks", ranks}, {"elements", elements}, {"shard_bytes", bytes}};
  }
  // A parameter without the boxes of what is held, which say the same as the ranges.
  static json of(const json& out, const std::string& fqn) {
    for (json parameter : out["parameters"]) {
      if (parameter["fqn"] == fqn) {
        for (json& part : parameter["held"]) {
          part.erase("boxes");
        }
        return parameter;
      }
    }
    return {};
  }
  static json boxes_of(const json& out, const std::string& fqn) {
    json boxes = json::array();
    for (const json& parameter : out["parameters"]) {
      for (const json& part : parameter["fqn"] == fqn ? parameter["held"] : json::array()) {
        boxes.push_back(part["boxes"]);
      }
    }
    return boxes;
  }
};

// [0, 35) pad [36, 43) pad [44, 79) pad [80, 85) pad: shards of 29 elements, 116 bytes.
TEST_F(PlanParametersTest, FlatParametersAreCutAnywhere) {
  const json out = json_of(plan("") + " --world-size 3");
  EXPECT_EQ(out.size(), 9U);
  ASSERT_EQ(out["parameters"].size(), 5U);
  EXPECT_EQ(out["parameters"][0]["fqn"], "embed_tokens.weight");
  EXPECT_EQ(of(out, "embed_tokens.weight"),
            (json{{"fqn", "embed_tokens.weight"},
                  {"aliases", {"lm_head.weight"}},
                  {"shape", {6, 5}},
                  {"dtype", "fp32"},
                  {"bytes", 120},
                  {"unit", ""},
                  {"held",
                   {held({0}, {0, 10}, {0, 40}), held({1}, {10, 20}, {0, 40}),
                    held({2}, {20, 30}, {0, 40})}}}));
  // Rows of 5: elements 0 to 28 are five rows and four elements.
  EXPECT_EQ(
      boxes_of(out, "layers.0.fc1.weight"),
      json::parse("[[[[0, 5], [0, 5]], [[5, 6], [0, 4]]], [[[5, 6], [4, 5]], [[6, 7], [0, 5]]]]"));
  EXPECT_EQ(of(out, "layers.0.fc1.weight")["unit"], "layers.0");
  EXPECT_EQ(of(out, "layers.0.fc1.weight")["aliases"], json::array());
  EXPECT_EQ(of(out, "layers.0.fc1.weight")["held"],
            (json{held({0}, {0, 29}, {0, 116}), held({1}, {29, 35}, {0, 24})}));
  EXPECT_EQ(of(out, "layers.0.fc1.bias")["held"], json::array({held({1}, {0, 7}, {28, 56})}));
  EXPECT_EQ(of(out, "layers.0.fc2.weight")["held"],
            (json{held({1}, {0, 14}, {60, 116}), held({2}, {14, 35}, {0, 84})}));
  EXPECT_EQ(of(out, "layers.0.fc2.bias")["held"], json::array({held({2}, {0, 5}, {88, 108})}));
  const auto padding = [](int rank, std::vector<int> bytes) {
    return json{{"unit", "layers.0"}, {"ranks", {rank}}, {"shard_bytes", bytes}};
  };
  EXPECT_EQ(out["padding"], (json{padding(1, {24, 28}), padding(1, {56, 60}), padding(2, {84, 88}),
                                  padding(2, {108, 116})}));
}

// Chunks of 3 rows of 5 elements, then 3 rows of 1, …; the last rank's are shorter and padded.
TEST_F(PlanParametersTest, PerParameterOnesAreCutByRows) {
  const json out = json_of(plan(R"(, "layout": "per_parameter")") + " --world-size 3");
  EXPECT_EQ(of(out, "layers.0.fc1.weight")["held"],
            (json{held({0}, {0, 15}, {0, 60}), held({1}, {15, 30}, {0, 60}),
                  held({2}, {30, 35}, {0, 20})}));
  EXPECT_EQ(of(out, "layers.0.fc1.bias")["held"],
            (json{held({0}, {0, 3}, {60, 72}), held({1}, {3, 6}, {60, 72}),
                  held({2}, {6, 7}, {60, 64})}));
  EXPECT_EQ(out["padding"][0],
            (json{{"unit", "layers.0"}, {"ranks", {2}}, {"shard_bytes", {20, 60}}}));
}

TEST_F(PlanParametersTest, ReplicasHoldTheSame) {
  EXPECT_EQ(of(json_of(plan("") + " --mesh 2x2"), "embed_tokens.weight")["held"],
            (json{held({0, 2}, {0, 15}, {0, 60}), held({1, 3}, {15, 30}, {0, 60})}));
  // no_shard, too, pads to a multiple of the world size: 85 to 88.
  const json whole = json_of(plan(R"(, "mesh": {"shard": 1})") + " --world-size 4");
  EXPECT_EQ(of(whole, "layers.0.fc2.bias")["held"],
            json::array({held({0, 1, 2, 3}, {0, 5}, {320, 340})}));
  EXPECT_EQ(whole["padding"].back(),
            (json{{"unit", "layers.0"}, {"ranks", {0, 1, 2, 3}}, {"shard_bytes", {340, 352}}}));
}

TEST_F(PlanParametersTest, IgnoredAndReplicatedOnesAreWhole) {
  const json out = json_of(plan(R"(, "ignored_parameters": ["layers.0.fc1.bias"], "units": [
      {"modules": "embed_tokens", "api": "replicate"}, {"modules": "layers.*"}, {"modules": ""}])",
                                /*tied=*/false));
  const json ignored = of(out, "layers.0.fc1.bias");
  EXPECT_EQ(ignored["unit"], json());
  EXPECT_EQ(ignored["held"],
            json::array({{{"ranks", {0, 1}}, {"elements", {0, 7}}, {"shard_bytes", json()}}}));
  EXPECT_EQ(of(out, "embed_tokens.weight")["held"], json::array({held({0, 1}, {0, 30}, {0, 120})}));
  EXPECT_EQ(of(out, "lm_head.weight")["held"],
            (json{held({0}, {0, 15}, {0, 60}), held({1}, {15, 30}, {0, 60})}));
}

// 16 bytes are 8 elements of bf16, the gathered dtype; shards are still fp32.
TEST_F(PlanParametersTest, AlignmentIsOfTheGatheredDtype) {
  const json out =
      json_of(plan(R"(, "mixed_precision": {"param_dtype": "bf16"})") + " --world-size 1");
  EXPECT_EQ(of(out, "layers.0.fc1.bias")["held"], json::array({held({0}, {0, 7}, {160, 188})}));
}

// 30 elements on 8 ranks: 4 each, and 2 on the last.
TEST_F(PlanParametersTest, TheTableJoinsRanksWithEqualParts) {
  const auto row = [](const std::string& out, const std::string& begin) {
    const size_t at = out.find("\n" + begin);
    return at == std::string::npos ? "none" : out.substr(at + 1, out.find('\n', at + 1) - at - 1);
  };
  const CommandResult result = run(plan("") + " --world-size 8");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(row(result.out, "embed_tokens.weight"),
              testing::MatchesRegex(R"(embed_tokens.weight = lm_head.weight +\[6, 5\] +fp32 +)"
                                    R"(\(root\) +0-6 +\[0, 28\), 4 each +\[0, 16\))"));
  EXPECT_THAT(result.out, HasSubstr("   7      [28, 30)         [0, 8)\n"));
  EXPECT_THAT(row(result.out, "(padding)"),
              testing::MatchesRegex(R"(\(padding\) +\(root\) +7 +- +\[8, 16\))"));
  const CommandResult replicas = run(plan("") + " --mesh 5x8");
  EXPECT_THAT(row(replicas.out, "embed_tokens.weight"),
              testing::ContainsRegex(R"(0-6, 8-14, 16-22, … +\[0, 28\), 4 each)"));
  EXPECT_THAT(replicas.out, HasSubstr(" 32-38\n")) << "the next line of the same cell";
  EXPECT_THAT(row(run(plan(R"(, "mesh": {"shard": 1})")).out, "embed_tokens.weight"),
              HasSubstr("all"));
}

// fc1 [7, 5] is divided along dimension 0 into 4 and 3 rows, fc2 [5, 7] along dimension 1 into 4
// and 3 columns; then FSDP shards each part along dimension 0.
TEST_F(PlanParametersTest, TensorParallelismDividesFirst) {
  const std::string of_tensor = plan(R"(, "layout": "per_parameter", "mesh": {"tensor": 2},
      "tensor_parallel": {"**.fc1": "column", "**.fc2": "row"})") +
                                " --world-size 4";
  const json out = json_of(of_tensor);
  EXPECT_EQ(out["mesh"],
            (json{{"replicate", 1}, {"shard", 2}, {"context", 1}, {"tensor", 2}, {"expert", 1}}));
  EXPECT_EQ(out["groups"], (json{{{"name", "shard"}, {"ranks", 2}, {"stride", 2}},
                                 {{"name", "tensor"}, {"ranks", 2}, {"stride", 1}}}));
  // In the order of elements: rows 0-1, 2-3 of the first part, then 4-5 and 6 of the second.
  EXPECT_EQ(of(out, "layers.0.fc1.weight")["held"],
            (json{held({0}, {0, 10}, {0, 40}), held({2}, {10, 20}, {0, 40}),
                  held({1}, {20, 30}, {0, 40}), held({3}, {30, 35}, {0, 20})}));
  EXPECT_EQ(
      boxes_of(out, "layers.0.fc2.weight"),
      json::parse(
          "[[[[0, 3], [0, 4]]], [[[0, 3], [4, 7]]], [[[3, 5], [0, 4]]], [[[3, 5], [4, 7]]]]"));
  const json fc2 = of(out, "layers.0.fc2.weight")["held"];
  EXPECT_EQ(fc2[1], (json{{"ranks", {1}}, {"elements", json()}, {"shard_bytes", {48, 84}}}));
  EXPECT_EQ(out["units"][1]["parameters"], 4 * 5 + 4 + 5 * 4 + 5);  // of rank 0
  // Ranks with the larger parts hold more.
  EXPECT_EQ(out["ranks"][0]["parameter_bytes"], out["ranks"][2]["parameter_bytes"]);
  EXPECT_GT(out["ranks"][0]["parameter_bytes"], out["ranks"][1]["parameter_bytes"]);
  const CommandResult text = run(of_tensor);
  EXPECT_THAT(text.out, HasSubstr("sharded over 2 ranks, tensor 2"));
  EXPECT_THAT(text.out, HasSubstr("1      [0:3, 4:7]"));
  const CommandResult refused = run("simulate --hardware 8xH100 --model " + model(true) +
                                    " --batch 1 --seq 8 --mesh shard=4,tensor=2");
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err,
              HasSubstr("tensor 2: family mlp has layers that are not simulated in parts yet"));
}

TEST_F(PlanParametersTest, OfATraceTheyNeedItsModel) {
  const std::string trace = kData + "/pytorch_traces/fsdp2-default/rank0.pt.trace.json.gz";
  const CommandResult none = run("plan --parameters --from-trace " + trace);
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("--model"));
  EXPECT_EQ(none.out, "");
  json config = json::parse(text(kData + "/llama-tiny/config.json"));
  const CommandResult other =
      run("plan --parameters --from-trace " + trace + " --model " + file("4.json", config.dump()));
  EXPECT_EQ(other.code, 3) << other.out;
  config["num_hidden_layers"] = 2;
  // Two ranks; q_proj [64, 64] comes after a norm of 64.
  const json out = json_of("plan --parameters --from-trace " + trace + " --model " +
                           file("2.json", config.dump()));
  EXPECT_EQ(out["units"].size(), 3U);
  const json q_proj = of(out, "model.layers.1.self_attn.q_proj.weight");
  EXPECT_EQ(q_proj["unit"], "model.layers.1");
  EXPECT_EQ(q_proj["held"][1]["elements"], (json{2048, 4096}));
  config["vocab_size"] = 512;
  const CommandResult larger =
      run("plan --parameters --from-trace " + trace + " --model " + file("v.json", config.dump()));
  EXPECT_EQ(larger.code, 3);
  EXPECT_THAT(larger.err, AllOf(HasSubstr("v.json"), HasSubstr("(root)")));
}

TEST_F(PlanCommandTest, TableShowsUnitsAndOrder) {
  const CommandResult result = run("plan --model " + kData + "/llama-tiny");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos) << "colours only on a terminal";
  EXPECT_THAT(result.out, AllOf(HasSubstr("LlamaForCausalLM"),
                                HasSubstr("model.layers.3      45,440  177.50 KiB"),
                                HasSubstr("every one of 2 ranks holds 419.12 KiB"),
                                HasSubstr("backward of model.layers.3   all-gather      "
                                          "model.layers.2  prefetched in backward")));
}

TEST_F(PlanCommandTest, MistakesExitWithTwoAndSuggest) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "expected a subcommand"},
      {"plam", "did you mean 'plan'?"},
      {"--hepl", "unknown flag '--hepl'"},
      {"plan --world-sizes 4 --model x", "did you mean '--world-size'?"},
      {"plan", "--model is required"},
      {"plan --model " + kData + "/llama-tiny --strategy fullshard", "did you mean 'full_shard'?"},
      {"plan --model " + kData + "/llama-tiny --world-size two", "--world-size"},
      {"plan --model " + kData + "/llama-tiny --world-size 0", "--world-size 0"},
      {"plan --model " + kData + "/llama-tiny --mesh 2by4", "RxS"},
      {"plan --model " + kData + "/llama-tiny more", "more"},
      {"plan --model " + kData + "/llama-tiny --accumulate 0",
       "--accumulate 0: expected at least 1"},
      {"plan --model " + kData + "/llama-tiny --accumulate 1000000",
       "--accumulate 1000000: expected at most 10000"},
      {"plan --model " + kData + "/llama-tiny --no-sync", "--no-sync needs --accumulate"},
      {"plan --model " + kData + "/llama-tiny --plan p --strategy full_shard",
       "--strategy and --plan cannot be given together"},
  };
  for (const auto& [arguments, message] : cases) {
    const CommandResult result = run(arguments);
    EXPECT_EQ(result.code, 2) << arguments;
    EXPECT_THAT(result.err, AllOf(testing::StartsWith("shardlens: "), HasSubstr(message)))
        << arguments;
    EXPECT_EQ(result.out, "") << arguments;
  }
}

TEST_F(PlanCommandTest, BadInputExitsWithThreeAndNamesThePlace) {
  const std::string unknown =
      file("unknown.json", R"({"version": 1, "units": [{"modules": ""}], "forward_prefech": 1})");
  const std::string glob = file(
      "glob.json", R"({"version": 1, "units": [{"modules": "model.layer.*"}, {"modules": ""}]})");
  const std::string broken = file("broken.json", R"({"version": 1,)");
  const std::string model = file("config.json", R"({"model_type": "llama", "hidden_size": -1})");
  const std::string tiny = " --model " + kData + "/llama-tiny ";
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases{
      {"plan --model /no/such/model", {"/no/such/model"}},
      {"plan --model " + model, {"config.json#/hidden_size", "found -1"}},
      {"plan" + tiny + "--plan /no/such/plan.json", {"/no/such/plan.json"}},
      {"plan" + tiny + "--plan " + unknown,
       {"unknown.json#/forward_prefech", "did you mean 'forward_prefetch'?"}},
      {"plan" + tiny + "--plan " + glob,
       {"glob.json#/units/0/modules", "did you mean 'model.layers.*'?"}},
      {"plan" + tiny + "--plan " + broken, {"broken.json", "not valid JSON"}},
      {"plan" + tiny + "--plan " + kData, {"is a directory"}},
      {"plan" + tiny + "--strategy hybrid_shard --world-size 5", {"/mesh", "world size is 5"}},
      {"plan" + tiny + "--mesh 2x2 --world-size 8", {"/mesh", "world size is 8"}},
  };
  for (const auto& [arguments, messages] : cases) {
    const CommandResult result = run(arguments);
    EXPECT_EQ(result.code, 3) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
    EXPECT_THAT(result.err, testing::StartsWith("shardlens: "));
    for (const std::string& message : messages) {
      EXPECT_THAT(result.err, HasSubstr(message)) << arguments;
    }
  }
}

TEST_F(PlanCommandTest, HelpAndVersionGoToStdout) {
  for (const std::string arguments : {"--help", "plan --help", "--version"}) {
    const CommandResult result = run(arguments);
    EXPECT_EQ(result.code, 0) << arguments;
    EXPECT_NE(result.out, "") << arguments;
    EXPECT_EQ(result.err, "") << arguments;
  }
  EXPECT_THAT(run("plan --help").out, AllOf(HasSubstr("--strategy"), HasSubstr("--world-size"),
                                            HasSubstr("--actions"), HasSubstr("--json")));
}

TEST_F(PlanCommandTest, AFullDiskIsReported) {
  const CommandResult result = run("plan --model " + kData + "/llama-tiny >/dev/full");
  EXPECT_EQ(result.code, 4);
  EXPECT_THAT(result.err, HasSubstr("cannot write to standard output"));
}

TEST_F(PlanCommandTest, FromTraceWritesPlanAndWorkload) {
  const std::string trace = kData + "/pytorch_traces/fsdp2-default/rank0.pt.trace.json.gz";
  const json out = json_of("plan --from-trace " + trace + " --out " + folder_ + "/recovered");
  ASSERT_EQ(out["units"].size(), 3U);
  EXPECT_EQ(out["units"][1]["fqn"], "model.layers.0");
  EXPECT_EQ(out["units"][1]["padded_numel"], 45440);
  EXPECT_EQ(out["units"][1]["gathered_bytes"], 45440 * 4);
  EXPECT_EQ(out["units"][1]["resharded_after_forward"], true);
  EXPECT_EQ(out["units"][0]["resharded_after_forward"], false);
  std::ifstream plan(folder_ + "/recovered/plan.json"),
      workload(folder_ + "/recovered/workload.json");
  EXPECT_EQ(json::parse(plan), out["plan"]);
  EXPECT_EQ(json::parse(workload)["units"], (json{"", "model.layers.0", "model.layers.1"}));
}

// Shardlens's own traces have no calls of c10d with sizes.
TEST_F(PlanCommandTest, FromTraceSaysNoSizeThatIsNotKnown) {
  const CommandResult result = run("plan --from-trace " + kData + "/../../traces/llama-emulated8");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, testing::ContainsRegex("model.layers.0 +- +- "));
  EXPECT_THAT(result.out, testing::Not(HasSubstr("0 B")));
}

TEST_F(PlanCommandTest, FromTraceOfDdpHasBuckets) {
  const std::string trace = kData + "/pytorch_traces/ddp-buckets";
  const json out = json_of("plan --from-trace " + trace + " --out " + folder_ + "/recovered");
  EXPECT_EQ(out["plan"]["units"][0]["api"], "replicate");
  EXPECT_EQ(out["plan"]["bucket_cap_mb"], 0.05);
  ASSERT_EQ(out["buckets"].size(), 6U);
  EXPECT_EQ(out["buckets"][0], (json{{"numel", 16384},
                                     {"bytes", 65536},
                                     {"dtype", "fp32"},
                                     {"gradients", {16384}},
                                     {"modules", json::array()}}));
  const CommandResult text = run("plan --from-trace " + trace);
  EXPECT_THAT(text.out, AllOf(HasSubstr("replicate (DDP), 2 ranks; bucket_cap_mb 0.05"),
                              HasSubstr("with_stack=True")));
}

TEST_F(PlanCommandTest, FromTraceSaysWhatItDoesNotFind) {
  const std::string other =
      file("other.json", R"({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm",
      "pid": 1, "tid": 1, "ts": 1, "dur": 1}]})");
  const CommandResult none = run("plan --from-trace " + other);
  EXPECT_EQ(none.code, 3);
  EXPECT_THAT(none.err, AllOf(HasSubstr("FSDP::"), HasSubstr("FullyShardedDataParallel.")));
  EXPECT_EQ(run("plan --from-trace " + folder_ + "/absent.json").code, 3);
  EXPECT_EQ(run("plan --model " + kData + "/llama-tiny --out " + folder_).code, 2);
  EXPECT_EQ(run("plan --from-trace " + other + " --strategy full_shard").code, 2);
  // A model other than the trace's: four blocks, where the recording has two.
  const CommandResult wrong = run("plan --model " + kData + "/llama-tiny --from-trace " + kData +
                                  "/pytorch_traces/fsdp1-full/rank0.pt.trace.json.gz");
  EXPECT_EQ(wrong.code, 3);
  EXPECT_THAT(wrong.err, HasSubstr("4 blocks"));
}

}  // namespace
}  // namespace shardlens
