#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/shardlens_command.h"

namespace shardlens {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const std::string kSearch = "search --model " + std::string(SHARDLENS_TEST_DATA) +
                            "/llama-tiny --hardware 8xH100 --batch 2 --seq 32 ";

using SearchCommandTest = ShardlensCommandTest;

TEST_F(SearchCommandTest, WritesThePlanThatItSaysIsBest) {
  const std::string out = folder_ + "/best.json";
  const CommandResult result = run(kSearch + "--memory-limit 1GiB --json --out " + out);
  ASSERT_EQ(result.code, 0) << result.err;
  const json found = json::parse(result.out);
  EXPECT_EQ(found["schema"], 1);
  EXPECT_EQ(found["evaluated"].get<int>() + found["pruned"].get<int>() + found["slower"].get<int>(),
            found["candidates"]);
  EXPECT_THAT(found["best"]["why"], HasSubstr("the fastest"));
  EXPECT_EQ(found["best"]["step_ns"], found["pareto"][0]["step_ns"]);
  json plan;
  std::ifstream(out) >> plan;
  EXPECT_EQ(plan, found["best"]["plan"]);
  // simulate predicts the same for that plan.
  const CommandResult again =
      run("simulate --model " + std::string(SHARDLENS_TEST_DATA) + "/llama-tiny --hardware 8xH100" +
          " --seq 32 --plan " + out + " --batch " + found["best"]["batch"].dump() +
          " --accumulate " + found["best"]["accumulate"].dump() + " --json");
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(json::parse(again.out)["step_ns"], found["best"]["step_ns"]);
}

TEST_F(SearchCommandTest, SaysWhichStackTheFiguresAreUnder) {
  const auto text = [this](const std::string& hardware) {
    return run("search --model " + std::string(SHARDLENS_TEST_DATA) + "/llama-tiny --hardware " +
               hardware + " --batch 2 --seq 32 --memory-limit 1GiB --precisions bf16")
        .out;
  };
  EXPECT_THAT(text("8xH100"), HasSubstr("figures under llm-foundry H100-SXM-80GB. "));
  EXPECT_THAT(text("8xB200"), HasSubstr("figures under PyTorch B200 for torchtitan. "));
  EXPECT_EQ(text("8xB200"), text("8xB200 --stack torchtitan"));
  EXPECT_THAT(text("4xPCIe"), HasSubstr("for torchtitan, fitted to A100 SXM4 40GB, the nearest GPU "
                                        "with published runs. "));
  // A stack that is asked for by name need not be that of the nearest GPU.
  EXPECT_THAT(text("8xB200 --stack \"PyTorch A100-80GB\""),
              HasSubstr("under PyTorch A100-80GB, fitted to A100 SXM4 80GB. "));
}

// What --fits says of each plan is what simulate --fits says of it.
TEST_F(SearchCommandTest, FitsAddsTheLargestSteps) {
  const std::string limit = "--memory-limit 64MiB ";
  const std::string out = folder_ + "/best.json";
  const CommandResult result = run(kSearch + limit + "--fits --json --out " + out);
  ASSERT_EQ(result.code, 0) << result.err;
  const json best = json::parse(result.out)["best"];
  EXPECT_GE(best["fits"]["batch"]["value"], best["batch"]);
  const CommandResult again =
      run("simulate --model " + std::string(SHARDLENS_TEST_DATA) + "/llama-tiny --hardware 8xH100" +
          " --seq 32 --plan " + out + " --batch " + best["batch"].dump() + " --accumulate " +
          best["accumulate"].dump() + " --fits --json " + limit);
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(json::parse(again.out)["fits"], best["fits"]);
  EXPECT_THAT(run(kSearch + limit + "--fits").out,
              testing::ContainsRegex("largest +longest\n.* batch +sequence\n"));
  EXPECT_FALSE(json::parse(run(kSearch + limit + "--json").out)["best"].contains("fits"));
}

// The choice of the bare hardware is printed next to the plan under the default stack.
TEST_F(SearchCommandTest, ComparesWithTheBareHardware) {
  const std::string limit = "--memory-limit 1GiB ";
  const json found = json::parse(run(kSearch + limit + "--json").out),
             bare = json::parse(run(kSearch + limit + "--json --stack bare").out);
  EXPECT_EQ(found["stack"], "llm-foundry H100-SXM-80GB");
  EXPECT_EQ(found["bare"]["name"], bare["best"]["name"]);
  EXPECT_EQ(found["bare"]["step_ns"], bare["best"]["step_ns"]);
  EXPECT_EQ(found["bare"]["same_plan"], found["best"]["name"] == bare["best"]["name"]);
  EXPECT_TRUE(bare["stack"].is_null() && bare["bare"].is_null());
  EXPECT_THAT(run(kSearch + limit).out,
              HasSubstr("under llm-foundry H100-SXM-80GB. On the bare hardware the fastest takes"));
  EXPECT_THAT(run(kSearch + limit + "--stack bare").out, HasSubstr("figures of the bare hardware"));
}

// simulate predicts the same for the plan with blocks that differ, and --out gets the faster plan.
TEST_F(SearchCommandTest, SearchesBlockByBlock) {
  const std::string out = folder_ + "/best.json", blocks = folder_ + "/blocks.json";
  const std::string flags = kSearch + "--memory-limit 4MiB --per-block ";
  const CommandResult result = run(flags + "--json --out " + out);
  ASSERT_EQ(result.code, 0) << result.err;
  const json found = json::parse(result.out), of_blocks = found["per_block"];
  EXPECT_GE(of_blocks["gap"].get<double>(), 0);
  std::ofstream(blocks) << of_blocks["plan"];
  const CommandResult again = run("simulate --model " + std::string(SHARDLENS_TEST_DATA) +
                                  "/llama-tiny --hardware 8xH100 --seq 32 --plan " + blocks +
                                  " --batch " + of_blocks["batch"].dump() + " --accumulate " +
                                  of_blocks["accumulate"].dump() + " --json");
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(json::parse(again.out)["step_ns"], of_blocks["step_ns"]);
  json written;
  std::ifstream(out) >> written;
  const bool faster = of_blocks["step_ns"].get<int64_t>() < found["best"]["step_ns"].get<int64_t>();
  EXPECT_EQ(written, faster ? of_blocks["plan"] : found["best"]["plan"]);
  EXPECT_THAT(run(flags).out, AllOf(HasSubstr("Block by block: "), HasSubstr("at most")));
  EXPECT_THAT(run(kSearch + "--memory-limit 4KiB --per-block").out,
              HasSubstr("Block by block: nothing fits."));
}

// With a spec of two nodes, both commands use the ranks of both nodes.
TEST_F(SearchCommandTest, OnSeveralNodesSimulateSaysTheSame) {
  json spec;
  std::ifstream(std::string(SHARDLENS_TEST_DATA) + "/../../sim/hardware/specs/4xPCIe.json") >> spec;
  spec["name"] = "2x4xPCIe";
  spec["nodes"] = 2;
  spec["fabric"]["network_gbps"] = {{"value", 10}, {"source", "assumed"}};
  const std::string hardware = folder_ + "/two.json", plan = folder_ + "/best.json";
  std::ofstream(hardware) << spec;
  const std::string flags = "--model " + std::string(SHARDLENS_TEST_DATA) +
                            "/llama-tiny --hardware " + hardware + " --seq 32 --json ";
  // Six microbatches with one reduction: only part of the step is simulated (sim/engine/alike.h).
  const CommandResult searched =
      run("search " + flags + "--batch 6 --no-sync --memory-limit 1GiB --out " + plan);
  ASSERT_EQ(searched.code, 0) << searched.err;
  const json best = json::parse(searched.out)["best"];
  int size = 1;
  for (const char* axis : {"replicate", "shard", "context", "tensor"}) {
    size *= best["mesh"][axis].get<int>();
  }
  EXPECT_EQ(size, 8);
  const std::string step = flags + "--plan " + plan + " --no-sync --batch " + best["batch"].dump() +
                           " --accumulate " + best["accumulate"].dump();
  const CommandResult all = run("simulate " + step);
  ASSERT_EQ(all.code, 0) << all.err;
  for (const char* figure : {"step_ns", "exposed_comm_ns", "peak_allocated_bytes"}) {
    EXPECT_EQ(json::parse(all.out)[figure], best[figure]) << figure;
  }
  const CommandResult one = run("simulate " + flags + "--world-size 4");
  const CommandResult every = run("simulate " + flags);
  ASSERT_EQ(one.code, 0) << one.err;
  ASSERT_EQ(every.code, 0) << every.err;
  EXPECT_LT(json::parse(one.out)["exposed_comm_ns"], json::parse(every.out)["exposed_comm_ns"]);
}

// Four heads and 256 tokens: tensor may be 1, 2 or 4. Of each mesh there is its fastest plan, or
// why it has none; simulate predicts the same for it.
TEST_F(SearchCommandTest, TriesEveryMesh) {
  const std::string model = folder_ + "/config.json", plan = folder_ + "/best.json";
  std::ofstream(model) << R"({"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 4096,
    "max_position_embeddings": 8192})";
  const std::string flags = "search --hardware 8xH100 --memory-limit 8GiB --seq 4096 --model " +
                            model + " --precision bf16 ";
  const CommandResult result = run(flags + "--json --out " + plan);
  ASSERT_EQ(result.code, 0) << result.err;
  const json found = json::parse(result.out);
  ASSERT_EQ(found["meshes"].size(), 20U);
  int evaluated = 0, slower = 0, reported = 0;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const json& mesh : found["meshes"]) {
    evaluated += mesh["evaluated"].get<int>();
    slower += mesh["slower"].get<int>();
    EXPECT_EQ(mesh["best"].is_null(), mesh["status"] != "searched") << mesh;
    EXPECT_EQ(mesh["reason"].is_null(), mesh["status"] == "searched") << mesh;
    EXPECT_EQ(mesh["status"] == "refused", mesh["mesh"]["tensor"] == 8) << mesh;
    if (!mesh["best"].is_null()) {
      least = std::min(least, mesh["best"]["step_ns"].get<int64_t>());
      EXPECT_EQ(mesh["best"]["batch"].get<int>() * mesh["best"]["accumulate"].get<int>(),
                2 * mesh["mesh"]["context"].get<int>() * mesh["mesh"]["tensor"].get<int>());
    }
    if (!mesh["time"].is_null()) {
      ++reported;
      EXPECT_FALSE(mesh["time"]["bound_by"].empty()) << mesh;
      int64_t exposed = 0;
      for (const json& purpose : mesh["time"]["communication"]) {
        exposed += purpose["exposed_ns"].get<int64_t>();
      }
      EXPECT_EQ(exposed, mesh["time"]["exposed_comm_ns"]) << mesh;
      EXPECT_EQ(exposed, mesh["best"]["exposed_comm_ns"]) << mesh;
    }
  }
  EXPECT_EQ(reported, 5);
  EXPECT_EQ(evaluated, found["evaluated"]);
  EXPECT_EQ(slower, found["slower"]);
  EXPECT_EQ(least, found["best"]["step_ns"]);
  EXPECT_FALSE(found["not_tried"].empty());
  const CommandResult again =
      run("simulate --hardware 8xH100 --seq 4096 --model " + model + " --json --plan " + plan +
          " --batch " + found["best"]["batch"].dump() + " --accumulate " +
          found["best"]["accumulate"].dump());
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(json::parse(again.out)["step_ns"], found["best"]["step_ns"]);
  const std::string text = run(flags).out;
  EXPECT_THAT(text, AllOf(HasSubstr("20 meshes: "), HasSubstr("bound by"),
                          HasSubstr("refused  tensor 8 does not divide 4 heads"),
                          HasSubstr("not tried  context by the method ring")));
  // Fewer meshes.
  const json data = json::parse(run(flags + "--json --tensor 1 --context 1").out);
  EXPECT_EQ(data["meshes"].size(), 4U);
  EXPECT_EQ(data["slower"], 0);
  const json one = json::parse(run(flags + "--json --mesh shard=4,tensor=2").out);
  ASSERT_EQ(one["meshes"].size(), 1U);
  EXPECT_EQ(one["best"]["mesh"]["tensor"], 2);
  EXPECT_EQ(one["meshes"][0]["samples"], 2);
  EXPECT_EQ(run(flags + "--tensor 3").code, 2);
  EXPECT_EQ(run(flags + "--tensor 2 --mesh 1x8").code, 2);
}

// Operators of a recorded run are not divided in another way.
TEST_F(SearchCommandTest, MeshesOfARecordedRunAreOfDataParallelism) {
  const CommandResult result = run("search --workload " + std::string(SHARDLENS_TEST_DATA) +
                                   "/../../traces/llama-emulated8 --memory-limit 8GiB --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const json found = json::parse(result.out);
  EXPECT_EQ(found["meshes"].size(), 20U);
  for (const json& mesh : found["meshes"]) {
    const bool divided = mesh["mesh"]["tensor"] != 1 || mesh["mesh"]["context"] != 1;
    EXPECT_EQ(mesh["status"] == "refused", divided) << mesh;
    if (divided) {
      EXPECT_THAT(mesh["reason"], HasSubstr("operators of a recorded run"));
    }
  }
}

// On the machine of a recorded run each plan has the intervals that simulate gives it.
TEST_F(SearchCommandTest, PlansOfARecordedRunHaveIntervals) {
  const std::string workload =
      " --workload " + std::string(SHARDLENS_TEST_DATA) + "/../../traces/llama-emulated8 ";
  const std::string plan = folder_ + "/best.json";
  const std::string search = "search" + workload + "--memory-limit 8GiB ";
  const CommandResult searched = run(search + "--json --out " + plan);
  ASSERT_EQ(searched.code, 0) << searched.err;
  const json best = json::parse(searched.out)["best"];
  ASSERT_EQ(best["interval_ns"].size(), 2U);
  EXPECT_LT(best["interval_ns"][0], best["step_ns"]);
  EXPECT_GT(best["interval_ns"][1], best["step_ns"]);
  const CommandResult simulated =
      run("simulate --json" + workload + "--plan " + plan + " --batch " + best["batch"].dump() +
          " --accumulate " + best["accumulate"].dump());
  ASSERT_EQ(simulated.code, 0) << simulated.err;
  const json same = json::parse(simulated.out);
  for (const char* key : {"step_ns", "interval_ns", "change_interval_ns"}) {
    EXPECT_EQ(best[key], same[key]) << key;
  }
  EXPECT_THAT(run(search).out, HasSubstr("90 % from"));
  // On a spec the interval is that of its constants; there is no step of which it is a change.
  const json named = json::parse(run(kSearch + "--memory-limit 1GiB --json").out)["best"];
  EXPECT_LT(named["interval_ns"][0], named["step_ns"]);
  EXPECT_GT(named["interval_ns"][1], named["step_ns"]);
  EXPECT_TRUE(named["change_interval_ns"].is_null());
}

TEST_F(SearchCommandTest, StateIsOfOneSearchAndSurvivesATornLine) {
  const std::string state = folder_ + "/state.jsonl";
  const std::string command = kSearch + "--memory-limit 1GiB --json --state " + state;
  const CommandResult first = run(command);
  ASSERT_EQ(first.code, 0) << first.err;
  std::ofstream(state, std::ios::app) << R"({"plan": "half)";
  const CommandResult again = run(command);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.out, first.out);
  const CommandResult other = run(kSearch + "--seq 16 --memory-limit 1GiB --state " + state);
  EXPECT_EQ(other.code, 2);  // --seq twice
  const CommandResult limit = run(kSearch + "--memory-limit 2GiB --state " + state);
  EXPECT_EQ(limit.code, 3);
  EXPECT_THAT(limit.err, HasSubstr("is not the state of this search"));
  std::ofstream(state, std::ios::app) << "\n{\"plan\": 7}\n";
  const CommandResult foreign = run(command);
  EXPECT_EQ(foreign.code, 3);
  EXPECT_THAT(foreign.err, AllOf(HasSubstr("is no result of a search"),
                                 HasSubstr("#/plan: expected a string, found 7")));
  const std::string large = folder_ + "/large.jsonl";
  ASSERT_EQ(run(kSearch + "--memory-limit 1GiB --state " + large).code, 0);
  std::ofstream(large, std::ios::app) << "{\"plan\": \"x\", \"compute_ns\": 1e308}\n";
  EXPECT_THAT(run(kSearch + "--memory-limit 1GiB --state " + large).err,
              HasSubstr("#/compute_ns: expected an integer, found 1e+308"));
}

// The search chooses among the precisions of the flag, and simulate predicts the same for its plan.
TEST_F(SearchCommandTest, ChoosesAPrecision) {
  const std::string out = folder_ + "/best.json", state = folder_ + "/state.jsonl";
  const std::string flags = kSearch + "--memory-limit 1GiB --precisions fp32,bf16,bf16/fp32 ";
  const CommandResult result = run(flags + "--json --out " + out + " --state " + state);
  ASSERT_EQ(result.code, 0) << result.err;
  const json found = json::parse(result.out);
  const json own = json::parse(run(kSearch + "--memory-limit 1GiB --json").out);
  EXPECT_EQ(found["candidates"], 2 * own["candidates"].get<int>());
  ASSERT_EQ(found["precisions"].size(), 2U);
  EXPECT_EQ(found["precisions"][0]["precision"], "fp32/fp32");
  EXPECT_EQ(found["precisions"][0]["step_ns"], own["best"]["step_ns"]);
  EXPECT_TRUE(own["precisions"].empty());
  EXPECT_TRUE(own["best"]["precision"].is_null());
  const std::string chosen = found["best"]["precision"];
  json plan;
  std::ifstream(out) >> plan;
  EXPECT_EQ(plan["mixed_precision"]["param_dtype"], chosen.substr(0, 4));
  EXPECT_EQ(plan["mixed_precision"]["reduce_dtype"], "fp32");
  const CommandResult again =
      run("simulate --model " + std::string(SHARDLENS_TEST_DATA) + "/llama-tiny --hardware 8xH100" +
          " --seq 32 --plan " + out + " --batch " + found["best"]["batch"].dump() +
          " --accumulate " + found["best"]["accumulate"].dump() + " --json");
  EXPECT_EQ(json::parse(again.out)["step_ns"], found["best"]["step_ns"]);
  // The state file has the outcomes of each precision, and goes on with another one.
  EXPECT_EQ(run(flags + "--json --state " + state).out, result.out);
  const CommandResult more =
      run(kSearch + "--memory-limit 1GiB --json --precisions bf16/bf16,fp32 --state " + state);
  EXPECT_EQ(more.code, 0) << more.err;
  EXPECT_EQ(json::parse(more.out)["precisions"][1], found["precisions"][0]);
  EXPECT_THAT(run(flags).out, HasSubstr("The fastest by precision (parameters/reduction): "));
  const json blocks = json::parse(run(flags + "--per-block --json").out)["per_block"];
  EXPECT_EQ(blocks["plan"]["mixed_precision"]["param_dtype"],
            blocks["precision"].get<std::string>().substr(0, 4));
}

// A precision that the recorded run did not measure is left out and counted.
TEST_F(SearchCommandTest, RefusesPrecisionsThatWereNotMeasured) {
  const std::string search = "search --workload " + std::string(SHARDLENS_TEST_DATA) +
                             "/../../traces/llama-emulated8 --memory-limit 8GiB --json ";
  const json own = json::parse(run(search).out);
  const CommandResult result = run(search + "--precisions fp32,fp16");
  ASSERT_EQ(result.code, 0) << result.err;
  const json found = json::parse(result.out);
  EXPECT_EQ(found["best"]["step_ns"], own["best"]["step_ns"]);
  EXPECT_TRUE(found["precisions"][1]["step_ns"].is_null());
  EXPECT_EQ(found["refused"].get<int>(), own["refused"].get<int>() + own["candidates"].get<int>());
  EXPECT_THAT(result.err, HasSubstr("could not be predicted"));
}

TEST_F(SearchCommandTest, BadInputIsNamed) {
  const std::string precisions = kSearch + "--memory-limit 80GiB --precisions ";
  const CommandResult typing = run(precisions + "fp32,bf61");
  EXPECT_EQ(typing.code, 2);
  EXPECT_THAT(typing.err, AllOf(HasSubstr("--precisions bf61: expected fp32, bf16 or fp16"),
                                HasSubstr("did you mean 'bf16'?")));
  EXPECT_EQ(run(precisions + "''").code, 2);
  EXPECT_EQ(run(precisions + "bf16 --precision bf16").code, 2);
  EXPECT_EQ(run(kSearch).code, 2);
  EXPECT_EQ(run(kSearch + "--memory-limit many").code, 2);
  EXPECT_EQ(run(kSearch + "--memory-limit 0GiB").code, 2);
  EXPECT_EQ(run(kSearch + "--memory-limit 80GiB --power-limit ''").code, 2);
  for (const auto& [size, message] :
       {std::pair{"80", "--memory-limit: '80' has no unit; expected a size such as 80GiB"},
        {"80XB", "--memory-limit: '80XB': expected a size such as 80GiB or 512MiB"},
        {"GiB", "--memory-limit: 'GiB': expected a size such as 80GiB or 512MiB"}}) {
    const CommandResult result = run(kSearch + "--memory-limit " + size);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, HasSubstr(message));
  }
  const CommandResult threads = run(kSearch + "--memory-limit 80GiB --threads 100000");
  EXPECT_EQ(threads.code, 2);
  EXPECT_THAT(threads.err, HasSubstr("--threads 100000: expected at most 1024"));
  EXPECT_EQ(run(kSearch + "--memory-limit 80GiB --stack none").code, 3);
  const CommandResult small = run(kSearch + "--memory-limit 1KiB --out " + folder_ + "/none.json");
  EXPECT_EQ(small.code, 1);
  EXPECT_THAT(small.err, HasSubstr("no plan fits"));
  EXPECT_FALSE(std::ifstream(folder_ + "/none.json").good());
}

}  // namespace
}  // namespace shardlens
