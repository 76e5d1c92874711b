#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/shardlens_command.h"

namespace shardlens {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const std::string kLlama = std::string(SHARDLENS_TEST_DATA) + "/llama-tiny";

class SimulateCommandTest : public ShardlensCommandTest {
 protected:
  json simulated(const std::string& flags) {
    const CommandResult result = run("simulate --model " + kLlama + " --json " + flags);
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out);
  }

  void refused(const std::string& flags, int code, const std::string& message) {
    const CommandResult result = run("simulate --model " + kLlama + " " + flags);
    EXPECT_EQ(result.code, code) << flags;
    EXPECT_THAT(result.err, HasSubstr(message)) << flags;
    EXPECT_EQ(result.out, "") << flags;
  }
};

// llama-tiny: 4 blocks of 45 440 parameters, 32 832 in the root (tests/data/llama-tiny); 8
// ranks divide both.
TEST_F(SimulateCommandTest, JsonHasThePinnedShape) {
  const json out = simulated("--hardware 8xH100 --batch 2 --seq 32");
  EXPECT_EQ(out["schema"], 1);
  const int64_t step = out["step_ns"];
  EXPECT_EQ(out["compute_ns"].get<int64_t>() + out["exposed_comm_ns"].get<int64_t>() +
                out["exposed_copy_ns"].get<int64_t>() + out["idle_ns"].get<int64_t>(),
            step);
  const json& gathers = out["communication"].at(0);
  EXPECT_EQ(gathers["purpose"], "gather_parameters");
  EXPECT_EQ(gathers["group"], "shard");
  EXPECT_EQ(gathers["ranks"], 8);
  EXPECT_EQ(gathers["kind"], "all_gather");
  EXPECT_EQ(gathers["count"], 2 * 4 + 1);
  EXPECT_EQ(gathers["bytes"], 4 * (2 * 4 * 45440 + 32832));
  EXPECT_GE(gathers["busy_ns"].get<int64_t>(), gathers["exposed_ns"].get<int64_t>());
  const double tokens_per_s = 8 * 2 * 32 / (static_cast<double>(step) * 1e-9);
  EXPECT_NEAR(out["tokens_per_s"].get<double>(), tokens_per_s, 1e-6 * tokens_per_s);
  EXPECT_GT(out["mfu"].get<double>(), 0);
  EXPECT_EQ(out["fits"], true);
  const json& memory = out["memory"];
  EXPECT_EQ(memory["parameters"].get<int64_t>() * 2, memory["optimizer"].get<int64_t>());
  // Shards of 5680 and 4104 floats, each rounded up to 512 bytes.
  EXPECT_EQ(memory["parameters"], 4 * 23040 + 16896);
  int64_t sum = 0;
  std::set<std::string> keys;
  for (const auto& [key, bytes] : memory.items()) {
    sum += bytes.get<int64_t>();
    keys.insert(key);
  }
  EXPECT_EQ(sum, out["peak_allocated_bytes"].get<int64_t>());
  EXPECT_EQ(keys, (std::set<std::string>{"parameters", "gradients", "optimizer", "activations",
                                         "unsharded", "communication"}));
}

TEST_F(SimulateCommandTest, IsReproducible) {
  const std::string flags = "--hardware 8xA100-80 --strategy hybrid_shard --accumulate 2";
  EXPECT_EQ(simulated(flags), simulated(flags));
}

// Whoever made the run would otherwise choose which file of this user is given to others with it.
TEST_F(SimulateCommandTest, OutHasNoFileOfALinkThatLeadsOutOfTheRun) {
  const auto simulated_run = [this](const std::string& run_folder, const std::string& out) {
    const CommandResult result = run("simulate --workload " + run_folder + " --out " + out);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.err;
  };
  const std::filesystem::path source = folder_ + "/run";
  (void)simulated("--hardware 4xPCIe --out " + source.string());
  EXPECT_THAT(simulated_run(source, folder_ + "/a"), Not(HasSubstr("a link")));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/a/config.json"));
  std::filesystem::rename(source / "config.json", folder_ + "/other.json");
  std::filesystem::create_symlink("../other.json", source / "config.json");
  EXPECT_THAT(simulated_run(source, folder_ + "/b"), HasSubstr("a link that leads out"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/b/config.json"));
}

TEST_F(SimulateCommandTest, OutIsACaptureThatAnalyzeReads) {
  const std::string out = folder_ + "/out";
  const json step = simulated("--hardware 4xPCIe --out " + out);
  const CommandResult result = run("analyze --json " + out);
  ASSERT_EQ(result.code, 0) << result.err;
  const json analysis = json::parse(result.out);
  ASSERT_EQ(analysis["ranks"].size(), 4U);
  EXPECT_EQ(analysis["diagnostics"], json::array());
  for (const json& rank : analysis["ranks"]) {
    EXPECT_EQ(rank["compute_ns"], step["compute_ns"]);
    EXPECT_EQ(rank["exposed_comm_ns"], step["exposed_comm_ns"]);
    EXPECT_EQ(rank["exposed_copy_ns"], step["exposed_copy_ns"]);
    const json& order = rank["order"]["planned_vs_issued"];
    EXPECT_EQ(order["compared"], 5 + 4 + 5);  // all-gathers of forward and backward, reductions
    EXPECT_EQ(order["first_difference"], nullptr);
  }
}

// A rank that computes twice as long delays all ranks; simulating each of several identical ranks
// gives the same result as simulating one.
TEST_F(SimulateCommandTest, EachRank) {
  const std::string flags = "--hardware 8xH100 --batch 64 --seq 64 ";
  const json one = simulated(flags), all = simulated(flags + "--ranks all"),
             slow = simulated(flags + "--slow-rank 3:2");
  EXPECT_EQ(one, all);
  EXPECT_GT(slow["step_ns"].get<int64_t>(), one["step_ns"].get<int64_t>());
}

TEST_F(SimulateCommandTest, AWrongValueIsRefusedWithWhatIsExpected) {
  refused("--precision fp8", 2, "simulate: --precision fp8: expected fp32, bf16 or fp16");
  refused("--optimizer lion", 2, "simulate: --optimizer lion: expected adamw or sgd");
  refused("--batch 1e3", 2, "simulate: --batch 1e3: expected a whole number");
  refused("--batch=1.5", 2, "simulate: --batch 1.5: expected a whole number");
}

TEST_F(SimulateCommandTest, AHostThatWaitsOrComputesTakesLonger) {
  const std::string flags = "--hardware 8xH100 --seq 32 ";
  const auto step = [&](const std::string& more) {
    return simulated(flags + more)["step_ns"].get<int64_t>();
  };
  EXPECT_GT(step("--waits-for-loss"), step(""));
  EXPECT_GT(step("--host compute"), step(""));
  EXPECT_GT(step("--operator-us 1000"), step("--operator-us 0"));
  EXPECT_GT(step("--action-us 1000"), step("--action-us 0"));
  refused("--hardware 8xH100 --host behind", 2, "--host");
  refused("--hardware 8xH100 --action-us -1", 2, "--action-us -1: expected microseconds from 0");
  for (const char* time : {"1e300", "nan", "inf", "1e15"}) {
    refused(std::string("--hardware 8xH100 --operator-us ") + time, 2, "--operator-us");
  }
  refused("--hardware 8xH100 --accumulate 1000000", 2, "--accumulate 1000000: expected at most");
}

// Five units, two microbatches, and a host so slow that the step is its time alone.
TEST_F(SimulateCommandTest, HooksOfPyTorchsUnitsTakeTheHostsTime) {
  const auto step = [&](const std::string& more) {
    return simulated("--hardware 8xH100 --seq 32 --accumulate 2 --operator-us 1000 " +
                     more)["step_ns"]
        .get<int64_t>();
  };
  EXPECT_EQ(step("--stack bare --unit-us 787") - step("--stack bare"), 2 * 5 * 787'000);
  // The spec's time is for operators of 11 us.
  const int64_t transformers =
      step("--stack transformers") - step("--stack transformers --unit-us 0");
  EXPECT_EQ(transformers, 2 * 5 * 4 * std::llround(1834e3 / 4 * 1000 / 11));
  refused("--hardware 8xH100 --unit-us -1", 2, "--unit-us -1: expected microseconds from 0");
}

TEST_F(SimulateCommandTest, TransportsAreForMachinesWhereTheyWereMeasured) {
  const auto comm = [&](const std::string& more) {
    return simulated("--hardware 8xH100 --stack bare --operator-us 0 --action-us 0 " +
                     more)["exposed_comm_ns"]
        .get<int64_t>();
  };
  EXPECT_LT(comm("--transport symmetric"), comm("--transport ring"));
  EXPECT_EQ(comm(""), comm("--transport ring"));
  refused("--hardware 8xH100 --transport symetric", 2, "did you mean 'symmetric'?");
  refused("--hardware 4xPCIe --transport copy_engine", 2, "NVLink SHARP, which 4xPCIe does not");
}

TEST_F(SimulateCommandTest, SoftwareChangesTheStep) {
  const std::string on = "--hardware 8xH100 --stack transformers --precision bf16 --seq 64 ";
  const auto of = [&](const std::string& more) { return simulated(on + more); };
  const nlohmann::json eager = of("");
  EXPECT_EQ(eager["software"]["compile"], "none");
  EXPECT_EQ(eager["software"]["matmul_dtype"], nullptr);
  const nlohmann::json compiled = of("--compile block");
  EXPECT_EQ(compiled["software"]["compile"], "block");
  EXPECT_LT(compiled["compute_ns"], eager["compute_ns"]);
  // The step is so small that the host limits it.
  const nlohmann::json graph = of("--compile block --cuda-graphs");
  EXPECT_EQ(graph["software"]["cuda_graphs"], true);
  EXPECT_LT(graph["step_ns"], compiled["step_ns"]);
  EXPECT_EQ(graph["peak_allocated_bytes"], compiled["peak_allocated_bytes"]);
  EXPECT_LT(of("--loss-chunks 8")["peak_allocated_bytes"], eager["peak_allocated_bytes"]);
}

TEST_F(SimulateCommandTest, SoftwareThatCannotRunIsRefused) {
  refused("--hardware 8xH100 --compile blocks", 2, "--compile");
  refused("--hardware 8xH100 --matmul-dtype fp8", 2, "fp8_rowwise");
  refused("--hardware 8xH100 --loss-chunks 0", 2, "--loss-chunks");
  refused("--hardware 8xA100-80 --matmul-dtype fp8_rowwise", 3, "'8xH100'");
  refused("--hardware 8xH100 --matmul-dtype nvfp4", 3, "'8xB200'");
}

TEST_F(SimulateCommandTest, AStackIsSlowerThanTheBareHardware) {
  const auto compute = [&](const std::string& more) {
    return simulated("--hardware 8xH100 --seq 32 " + more)["compute_ns"].get<int64_t>();
  };
  EXPECT_GT(compute("--stack 'llm-foundry H100-SXM-80GB'"), compute("--stack bare"));
  // Its norms are several kernels.
  EXPECT_GT(compute("--stack transformers"), compute("--stack bare"));
  refused("--hardware 8xH100 --expert-skew 1", 3, "the model has no experts");
  refused("--hardware 8xH100 --expert-skew -1", 2, "--expert-skew");
  refused("--hardware 8xH100 --expert-skew nan", 2, "--expert-skew");
  refused("--hardware 8xH100 --stack 'llm-foundry H100-SXM-80G'", 3,
          "did you mean 'llm-foundry H100-SXM-80GB'?");
  refused("--hardware 8xH100 --stack transformer", 3, "did you mean 'transformers'?");
}

// One limit, or the least and the most of one that is not known.
TEST_F(SimulateCommandTest, APowerLimitIsANumberOrARange) {
  const std::string limit = "--hardware 8xH100 --seq 32 --batch 4096 --power-limit ";
  const json known = simulated(limit + "500"), any = simulated(limit + "300:700");
  EXPECT_EQ(any["step_ns"], known["step_ns"]);
  EXPECT_GT(any["interval_ns"][1], known["interval_ns"][1]);
  refused(limit + "800", 3, "expected 140 to 700 W");
  refused(limit + "300:200", 3, "200:300");
  refused(limit + "300:", 2, "expected watts (700)");
}

// A named spec has the constants fitted to its GPU, and the bare figure next to them; other
// machines say that they have none.
TEST_F(SimulateCommandTest, ANamedSpecHasItsStackByDefault) {
  const json own = simulated("--hardware 8xH100 --seq 32"),
             named = simulated("--hardware 8xH100 --seq 32 --stack 'llm-foundry H100-SXM-80GB'"),
             bare = simulated("--hardware 8xH100 --seq 32 --stack bare");
  EXPECT_EQ(own, named);
  EXPECT_EQ(own["stack"], "llm-foundry H100-SXM-80GB");
  EXPECT_EQ(own["bare"]["step_ns"], bare["step_ns"]);
  EXPECT_GT(own["step_ns"], bare["step_ns"]);
  EXPECT_EQ(own["memory"], bare["memory"]);
  EXPECT_TRUE(bare["stack"].is_null() && bare["bare"].is_null());
  EXPECT_EQ(simulated("--hardware 8xH100-96 --seq 32")["stack"], "torchtitan H100-96GB");
  EXPECT_TRUE(own["stack_gpu"].is_null() && own["program"].is_null());
  // GPUs without published runs have the nearest stack, and are less certain.
  const auto width = [](const json& of) {
    return of["interval_ns"][1].get<double>() / of["interval_ns"][0].get<double>();
  };
  for (const auto& [unfitted, gpu] : {std::pair{"8xH200", "H100 SXM5 80GB"},
                                      {"8xB300", "B200 SXM 180GB"},
                                      {"4xPCIe", "A100 SXM4 40GB"}}) {
    const json now = simulated("--hardware " + std::string(unfitted) + " --seq 32");
    EXPECT_EQ(now["stack_gpu"], gpu) << unfitted;
    EXPECT_GT(width(now), width(own)) << unfitted;
    EXPECT_GT(now["step_ns"], now["bare"]["step_ns"]) << unfitted;
  }
  EXPECT_LT(own["interval_ns"][0], own["step_ns"]);
  EXPECT_GT(own["interval_ns"][1], own["step_ns"]);
  EXPECT_LT(own["tokens_per_s_interval"][0], own["tokens_per_s"]);
  EXPECT_GT(own["tokens_per_s_interval"][1], own["tokens_per_s"]);
  // A file is the user's own description, with its own "software".
  const json file = simulated("--hardware " + std::string(SHARDLENS_TEST_DATA) +
                              "/../../sim/hardware/specs/8xH100.json --seq 32");
  EXPECT_EQ(file["step_ns"], bare["step_ns"]);
  const std::string text = run("simulate --model " + kLlama + " --hardware 8xH100 --seq 32").out;
  EXPECT_THAT(text, HasSubstr("under llm-foundry H100-SXM-80GB; the bare hardware: "));
  EXPECT_THAT(run("simulate --model " + kLlama + " --hardware 8xH200 --seq 32").out,
              HasSubstr("for torchtitan, fitted to H100 SXM5 80GB, the nearest GPU with publi"));
  EXPECT_THAT(text, ::testing::ContainsRegex("90 % from .* to .* tokens/s"));
  EXPECT_THAT(run("simulate --model " + kLlama + " --hardware 8xB200 --stack bare --seq 32").out,
              HasSubstr("bare hardware: no constants of a software stack"));
}

TEST_F(SimulateCommandTest, NumbersThatDoNotFitAreRefused) {
  for (const char* flag : {"--batch 99999999999999999999", "--batch -99999999999999999999",
                           "--batch 9223372036854775807", "--seq 16777217",
                           "--world-size 4294967296", "--momentum nan", "--momentum -1"}) {
    refused(std::string("--hardware 8xH100 ") + flag, 2, std::string(flag).substr(0, 6));
  }
  refused("--hardware 8xH100 --batch 1048576 --seq 1024", 2, "at most 268435456 tokens");
  const CommandResult seed =
      run("capture --model " + kLlama + " --tokens t --out " + folder_ + "/o --seed -1");
  EXPECT_EQ(seed.code, 2);
  EXPECT_THAT(seed.err, HasSubstr("--seed -1: expected a whole number from 0"));
}

TEST_F(SimulateCommandTest, BadInputIsNamed) {
  refused("", 2, "--hardware");
  refused("--hardware 8xH10", 3, "did you mean '8xH100'?");
  refused("--hardware ab:0:inf", 2, "but not of compute");
  refused("--hardware 8xH100 --world-size 16", 3, "8xH100 has 8 GPUs");
  refused("--hardware 8xH100 --slow-rank 9:2", 2, "RANK:FACTOR");
  refused("--hardware 8xH100 --batch 0", 2, "--batch 0");
  refused("--hardware 8xH100 --strategy replicate --mesh 2x4", 3, "#/mesh");
}

// Recorded from PyTorch with six buckets; a cap of 100 MiB joins them into one.
TEST_F(SimulateCommandTest, DdpTracesAreReplayed) {
  const std::string trace = std::string(SHARDLENS_TEST_DATA) + "/pytorch_traces/ddp-buckets";
  const CommandResult own = run("simulate --json --workload " + trace);
  ASSERT_EQ(own.code, 0) << own.err;
  const json baseline = json::parse(own.out)["baseline"];
  EXPECT_GT(baseline["measured_step_ns"].get<int64_t>(), 0);
  EXPECT_NEAR(baseline["error"].get<double>(), 0, 0.25);
  std::ofstream(folder_ + "/plan.json")
      << R"({"version": 1, "bucket_cap_mb": 100, "units": [{"modules": "", "api": "replicate"}]})";
  EXPECT_EQ(run("simulate --workload " + trace + " --plan " + folder_ + "/plan.json").code, 0);
  const CommandResult sharded = run("simulate --workload " + trace + " --strategy full_shard");
  EXPECT_EQ(sharded.code, 3);
  EXPECT_THAT(sharded.err, HasSubstr("record a step of the model under fully_shard"));
}

// A model.json's program has an optimizer of several operators, of which the run's settings tell.
TEST_F(SimulateCommandTest, ARunOfAModelFileIsSimulatedAgain) {
  std::ofstream(folder_ + "/model.json") << R"({"shardlens_model": 1, "name": "One",
    "dtype": "float32", "modules": [{"fqn": "", "class": "One"}, {"fqn": "a", "class": "Linear"}],
    "parameters": [{"name": "a.weight", "shape": [64, 64], "dtype": "float32"}],
    "steps": [{"batch": 2, "seq": null,
      "tensors": [{"id": 0, "bytes": 512, "dtype": "float32", "storage": 0},
                  {"id": 1, "bytes": 512, "dtype": "float32", "storage": 1}],
      "operators": [
        {"id": 0, "name": "aten::mm", "kind": "gemm", "phase": "forward", "module": "a",
         "inputs": [0], "outputs": [1], "saved": [0], "flops": 16384, "product": [1, 2, 64, 64]},
        {"id": 1, "name": "aten::mm", "kind": "gemm", "phase": "backward", "module": "a",
         "inputs": [0, 1], "outputs": [], "flops": 16384, "product": [1, 64, 64, 2], "forward": 0}],
      "order": [">a", "o0", "<a", "o1"]}]})";
  const CommandResult made =
      run("simulate --model " + folder_ + "/model.json --hardware 8xH100 --world-size 2 --out " +
          folder_ + "/run");
  ASSERT_EQ(made.code, 0) << made.err;
  const CommandResult again = run("simulate --json --workload " + folder_ + "/run");
  ASSERT_EQ(again.code, 0) << again.err;
  const json out = json::parse(again.out);
  EXPECT_EQ(out["step_ns"], out["baseline"]["simulated_step_ns"]);
  EXPECT_EQ(json::parse(text(folder_ + "/run/run.json"))["options"]["optimizer_impl"], "foreach");
}

// 131 584 parameters on two ranks: each has half of them, and two states of each, in the dtype in
// which the program trains them.
TEST_F(SimulateCommandTest, APureBf16ProgramHasShardsAndStatesInBf16) {
  const auto memory = [this](const std::string& by) {
    std::ofstream(folder_ + "/model.json") << R"({"shardlens_model": 1, "name": "One",
      "dtype": "bfloat16", "origin": {"made_by": ")" +
                                                  by + R"("},
      "modules": [{"fqn": "", "class": "One"}, {"fqn": "a", "class": "Embedding"}],
      "parameters": [{"name": "a.weight", "shape": [514, 256], "dtype": "bfloat16"}],
      "steps": [{"batch": 2, "seq": null,
        "tensors": [{"id": 0, "bytes": 512, "dtype": "bfloat16", "storage": 0}],
        "operators": [
          {"id": 0, "name": "aten::embedding", "kind": "embedding", "phase": "forward",
           "module": "a", "inputs": [0], "outputs": [0], "saved": [], "flops": 0},
          {"id": 1, "name": "aten::embedding_dense_backward", "kind": "embedding", "forward": 0,
           "phase": "backward", "module": "a", "inputs": [0], "outputs": [], "flops": 0}],
        "order": [">a", "o0", "<a", "o1"]}]})";
    const CommandResult result =
        run("simulate --json --model " + folder_ + "/model.json --hardware 8xH100 --world-size 2");
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out)["memory"];
  };
  const json trained = memory("shardlens.record 1");
  EXPECT_EQ(trained["parameters"], 131'584);
  EXPECT_EQ(trained["optimizer"], 2 * 131'584);
  const json exported = memory("shardlens.export 1");
  EXPECT_EQ(exported["parameters"], 2 * 131'584);
  EXPECT_EQ(exported["optimizer"], 4 * 131'584);
}

// A recorded run's plan keeps what the strategy does not say: its units, precision and prefetch.
TEST_F(SimulateCommandTest, AStrategyChangesOnlyWhatItSaysOfARun) {
  const std::string traces = std::string(SHARDLENS_TEST_DATA) + "/pytorch_traces/";
  const auto of_run = [this](const std::string& flags) {
    const CommandResult result = run("simulate --json --workload " + flags);
    EXPECT_EQ(result.code, 0) << flags << ": " << result.err;
    return json::parse(result.out);
  };
  for (const std::string& path : {traces + "fsdp2-prefetch", traces + "fsdp2-bf16",
                                  std::string(SHARDLENS_TEST_DATA) + "/../../traces/fsdp2-h200"}) {
    const json own = of_run(path);
    EXPECT_EQ(own["step_ns"], own["baseline"]["simulated_step_ns"]) << path;
    EXPECT_EQ(of_run(path + " --strategy full_shard"), own) << path;
  }
  const std::string path = traces + "fsdp2-prefetch";
  (void)of_run(path + " --strategy shard_grad_op --out " + folder_ + "/kept");
  const json plan = json::parse(text(folder_ + "/kept/plan.json"));
  EXPECT_EQ(plan["reshard_after_forward"], false);
  (void)of_run(path + " --out " + folder_ + "/own");
  json own = json::parse(text(folder_ + "/own/plan.json"));
  EXPECT_FALSE(own["forward_prefetch"].empty());
  for (json& unit : own["units"]) {
    unit.erase("reshard_after_forward");
  }
  for (const char* key : {"units", "forward_prefetch", "mixed_precision", "layout", "mesh"}) {
    EXPECT_EQ(plan[key], own[key]) << key;
  }
}

TEST_F(SimulateCommandTest, TextNamesThePeak) {
  const CommandResult result = run("simulate --model " + kLlama + " --hardware 8xH100");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("exposed communication"));
  EXPECT_THAT(result.out, HasSubstr("alive at the peak"));
  EXPECT_THAT(result.out, HasSubstr("fits"));
}

// llama-tiny on 8 ranks in fp32: 22 720 bytes of a block and 16 416 of the root, which the
// allocator rounds up to 512.
TEST_F(SimulateCommandTest, ThePeakIsGivenByUnitAndCategory) {
  const json out = simulated("--hardware 8xH100 --batch 2 --seq 32");
  json sums = json::object();
  for (const json& row : out["memory_by_unit"]) {
    for (const auto& [category, bytes] : row["memory"].items()) {
      sums[category] = sums.value(category, int64_t{0}) + bytes.get<int64_t>();
    }
    if (row["unit"] == "model.layers.3" || row["unit"] == "") {
      const int64_t shard = row["unit"] == "" ? 16'896 : 23'040;
      EXPECT_EQ(row["memory"]["parameters"], shard);
      EXPECT_EQ(row["memory"]["optimizer"], 2 * shard);
    }
  }
  EXPECT_EQ(sums, out["memory"]);
  const CommandResult text =
      run("simulate --model " + kLlama + " --hardware 8xH100 --batch 2 --seq 32 --mesh tensor=2");
  EXPECT_THAT(text.out, HasSubstr("by unit"));
  EXPECT_THAT(text.out, HasSubstr("0 to 3"));
}

TEST_F(SimulateCommandTest, MeshesThatCannotBeAreRefused) {
  const std::string simulate = "simulate --hardware 8xH100 --model " + kLlama;
  const CommandResult tensor = run(simulate + " --seq 64 --mesh shard=1,tensor=8");
  EXPECT_EQ(tensor.code, 3) << tensor.out;
  EXPECT_THAT(tensor.err, HasSubstr("mesh/tensor: tensor 8 does not divide 4 heads; expected one "
                                    "of 1, 2"));
  const CommandResult context = run(simulate + " --seq 24 --mesh shard=1,context=8");
  EXPECT_EQ(context.code, 3) << context.out;
  EXPECT_THAT(context.err, HasSubstr("mesh/context: context 8: each rank has two pieces of a "
                                     "sample, but 16 does not divide 24 tokens; expected one of "
                                     "1, 2, 3, 4, 6, 12"));
  const CommandResult expert = run(simulate + " --seq 64 --mesh shard=8,expert=2");
  EXPECT_EQ(expert.code, 3) << expert.out;
  EXPECT_THAT(expert.err, HasSubstr("mesh/expert: expert 2: the model has no experts; expected 1"));
}

TEST_F(SimulateCommandTest, ADividedMeshHasItsCommunicationByPurpose) {
  const std::string simulate = "simulate --hardware 8xH100 --batch 1 --seq 64 --model " + kLlama +
                               " --mesh shard=2,context=2,tensor=2";
  const CommandResult text = run(simulate);
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, testing::ContainsRegex("activations +tensor +all_gather"));
  EXPECT_THAT(text.out, testing::ContainsRegex("context +context +all_gather"));
  const CommandResult json = run(simulate + " --json");
  ASSERT_EQ(json.code, 0) << json.err;
  const nlohmann::json out = nlohmann::json::parse(json.out);
  EXPECT_EQ(out["mesh"],
            nlohmann::json::parse(
                R"({"replicate": 1, "shard": 2, "context": 2, "tensor": 2, "expert": 1})"));
  // Two samples of 64 tokens.
  EXPECT_NEAR(out["tokens_per_s"].get<double>() * out["step_ns"].get<double>() * 1e-9, 2 * 64,
              0.01);
}

// A recorded run is simulated at its own sizes of the axes that divide its operators, and at no
// others: a rank's operators, units and collectives are those of its part.
TEST_F(SimulateCommandTest, ARunOfTensorParallelismKeepsItsAxis) {
  const std::string run_of = std::string(SHARDLENS_TEST_DATA) + "/pytorch_traces/fsdp2-tensor";
  const CommandResult own = run("simulate --json --workload " + run_of);
  ASSERT_EQ(own.code, 0) << own.err;
  const nlohmann::json figures = nlohmann::json::parse(own.out);
  EXPECT_LT(std::abs(figures["baseline"]["error"].get<double>()), 0.03);
  EXPECT_EQ(figures["baseline"]["one_pass"], false);
  EXPECT_EQ(figures["mesh"],
            nlohmann::json::parse(
                R"({"replicate": 1, "shard": 2, "context": 1, "tensor": 2, "expert": 1})"));
  // Two ranks with 2 samples of 32 tokens each; the other two divide the same samples.
  EXPECT_NEAR(figures["tokens_per_s"].get<double>() * figures["step_ns"].get<double>() * 1e-9,
              2 * 2 * 32, 0.01);
  const CommandResult kept = run("simulate --workload " + run_of + " --strategy shard_grad_op");
  EXPECT_EQ(kept.code, 0) << kept.err;
  const CommandResult plan = run("plan --from-trace " + run_of);
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("4 ranks in shards of 2, tensor 2"));
  EXPECT_THAT(plan.out, HasSubstr("tensor parallelism over 2 ranks (process group mesh_tp)"));
  const CommandResult other = run("simulate --workload " + run_of + " --mesh shard=4,tensor=1");
  EXPECT_EQ(other.code, 3) << other.out;
  EXPECT_THAT(other.err,
              HasSubstr("its operators are those of its own context 1, tensor 2 and expert 1"));
  EXPECT_THAT(other.err, HasSubstr("simulate --workload RUN --model MODEL --mesh"));
  const std::string model =
      " --model " + std::string(SHARDLENS_TEST_DATA) + "/llama-tiny/config.json";
  const CommandResult another =
      run("simulate --workload " + run_of + model + " --mesh shard=4,tensor=1");
  EXPECT_EQ(another.code, 3) << another.out;
  EXPECT_THAT(another.err, HasSubstr("is not the model of"));
  const CommandResult needless = run("simulate --workload " + run_of + model);
  EXPECT_EQ(needless.code, 2) << needless.out;
  EXPECT_THAT(needless.err, HasSubstr("is for another tensor, context or expert than the run's"));
}

TEST_F(SimulateCommandTest, AnotherSequenceNeedsTwoRecordings) {
  const std::string workload = " --workload " + std::string(SHARDLENS_TEST_DATA) + "/recorded_run";
  const CommandResult one = run("simulate" + workload + " --seq 12");
  EXPECT_EQ(one.code, 3) << one.out;
  EXPECT_THAT(one.err, HasSubstr("simulate --workload FIRST --workload SECOND --seq N"));
  const CommandResult same = run("simulate" + workload + workload + " --seq 12");
  EXPECT_EQ(same.code, 3) << same.out;
  EXPECT_THAT(same.err, HasSubstr("its sequences have 6 tokens too"));
  const CommandResult three = run("simulate" + workload + workload + workload);
  EXPECT_EQ(three.code, 2) << three.out;
  EXPECT_THAT(three.err, HasSubstr("--workload: expected a recorded run, or two"));
}

// A plan has no axis for what else divides the model. No command answers for such a run what it
// cannot know.
TEST_F(SimulateCommandTest, ARunOfAnotherParallelismIsRefusedByItsName) {
  const std::string trace = folder_ + "/rank0.json";
  ASSERT_EQ(run("convert " + std::string(SHARDLENS_TEST_DATA) +
                "/pytorch_traces/fsdp2-tensor --out " + trace)
                .code,
            0);
  std::stringstream text;
  text << std::ifstream(trace).rdbuf();
  std::string changed = text.str();
  for (size_t at = 0; (at = changed.find("mesh_tp", at)) != std::string::npos;) {
    changed.replace(at, 7, "mesh_pp");
  }
  std::ofstream(trace) << changed;
  for (const std::string& command : {"simulate --workload " + trace, "advise " + trace}) {
    const CommandResult result = run(command);
    EXPECT_EQ(result.code, 3) << command << result.err;
    EXPECT_THAT(result.err, HasSubstr("pipeline parallelism over 2 ranks (process group mesh_pp)"))
        << command;
  }
}

// The recorder wrote why there is no plan.json.
TEST_F(SimulateCommandTest, NotesOfTheRecorderArePrinted) {
  namespace fs = std::filesystem;
  const fs::path run_of = fs::path(folder_) / "noted";
  fs::copy(fs::path(SHARDLENS_TEST_DATA) / "recorded_run", run_of);
  fs::remove(run_of / "plan.json");
  std::ofstream(run_of / "run.json")
      << R"({"world_size": 2, "notes": ["no plan.json: a plan file has no dtype float64"]})";
  const std::string note = "shardlens.record: no plan.json: a plan file has no dtype float64";
  for (const char* command : {"simulate --workload ", "plan --from-trace ", "analyze "}) {
    const CommandResult result = run(command + run_of.string());
    EXPECT_THAT(result.out + result.err, HasSubstr(note)) << command;
  }
}

// What --fits finds is what the command says of each size by itself.
TEST_F(SimulateCommandTest, FitsFindsTheLargestSteps) {
  const std::string machine = "--hardware 8xH100 --strategy full_shard ";
  const auto peak = [&](int64_t batch, int64_t seq) {
    return simulated(machine + "--batch " + std::to_string(batch) + " --seq " +
                     std::to_string(seq))["peak_reserved_bytes"]
        .get<int64_t>();
  };
  const int64_t limit = 64 << 20;
  const json out = simulated(machine + "--batch 2 --seq 64 --fits --memory-limit " +
                             std::to_string(limit) + "B");
  EXPECT_EQ(out["memory_limit"], limit);
  const json& batch = out["fits"]["batch"];
  const int64_t samples = batch["value"];
  EXPECT_GT(samples, 2);
  EXPECT_LE(peak(samples, 64), limit);
  EXPECT_GT(peak(samples + 1, 64), limit);
  EXPECT_EQ(batch["largest"]["peak_reserved_bytes"], peak(samples, 64));
  EXPECT_EQ(batch["beyond"]["value"], samples + 1);
  EXPECT_EQ(batch["beyond"]["peak_reserved_bytes"], peak(samples + 1, 64));
  int64_t sum = 0;
  for (const auto& [category, bytes] : batch["largest"]["memory"].items()) {
    sum += bytes.get<int64_t>();
  }
  EXPECT_EQ(sum, batch["largest"]["peak_allocated_bytes"]);
  // 128 positions: the longest sequence that the model takes fits.
  const json& sequence = out["fits"]["sequence"];
  EXPECT_EQ(sequence["value"], sequence["bound"]);
  EXPECT_EQ(sequence["beyond"], nullptr);
  EXPECT_LE(peak(2, sequence["value"]), limit);
}

TEST_F(SimulateCommandTest, FitsSaysThatNothingFits) {
  const json out = simulated("--hardware 8xH100 --fits --memory-limit 1KiB");
  EXPECT_EQ(out["fits"]["batch"]["value"], 0);
  EXPECT_EQ(out["fits"]["batch"]["largest"], nullptr);
  EXPECT_EQ(out["fits"]["batch"]["beyond"]["value"], 1);
  const CommandResult text =
      run("simulate --model " + kLlama + " --hardware 8xH100 --fits --memory-limit 1KiB");
  EXPECT_THAT(text.out, HasSubstr("largest batch  none"));
  refused("--hardware 8xH100 --memory-limit 5GiB", 2, "--fits");
  refused("--hardware 8xH100 --fits --memory-limit 0GiB", 2, "--memory-limit");
}

// Of a recorded run other microbatches are not known.
TEST_F(SimulateCommandTest, FitsOfARecordedRunSaysWhatIsUnknown) {
  const std::string recorded =
      "simulate --workload " + std::string(SHARDLENS_TEST_DATA) + "/recorded_run --fits";
  const CommandResult unlimited = run(recorded);
  EXPECT_EQ(unlimited.code, 2);
  EXPECT_THAT(unlimited.err, HasSubstr("the machine's memory is unknown; give --memory-limit"));
}

}  // namespace
}  // namespace shardlens
