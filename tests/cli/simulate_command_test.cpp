#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

namespace shardlens {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kLlama = std::string(SHARDLENS_TEST_DATA) + "/llama-tiny";

struct Result {
  int code = -1;
  std::string out, err;
};

class SimulateCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "shardlens-sim-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Result run(const std::string& arguments) {
    const std::string error_file = folder_ + "/stderr";
    const std::string command = std::string(SHARDLENS_BIN_DIR) + "/shardlens " + arguments + " 2>" +
                                error_file + " </dev/null";
    Result result;
    FILE* pipe = popen(command.c_str(), "r");
    std::array<char, 4096> block{};
    for (size_t n = 0; (n = fread(block.data(), 1, block.size(), pipe)) > 0;) {
      result.out.append(block.data(), n);
    }
    const int status = pclose(pipe);
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::ifstream in(error_file);
    result.err.assign(std::istreambuf_iterator<char>(in), {});
    return result;
  }

  json simulated(const std::string& flags) {
    const Result result = run("simulate --model " + kLlama + " --json " + flags);
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out);
  }

  void refused(const std::string& flags, int code, const std::string& message) {
    const Result result = run("simulate --model " + kLlama + " " + flags);
    EXPECT_EQ(result.code, code) << flags;
    EXPECT_THAT(result.err, HasSubstr(message)) << flags;
    EXPECT_EQ(result.out, "") << flags;
  }

  std::string folder_;
};

// llama-tiny: 4 blocks of 45 440 parameters, 32 832 in the root (shared/README of its fixture); 8
// ranks divide both.
TEST_F(SimulateCommandTest, JsonHasThePinnedShape) {
  const json out = simulated("--hardware 8xH100 --batch 2 --seq 32");
  EXPECT_EQ(out["schema"], 1);
  const int64_t step = out["step_ns"];
  EXPECT_EQ(out["compute_ns"].get<int64_t>() + out["exposed_comm_ns"].get<int64_t>() +
                out["exposed_copy_ns"].get<int64_t>() + out["idle_ns"].get<int64_t>(),
            step);
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

TEST_F(SimulateCommandTest, OutIsACaptureThatAnalyzeReads) {
  const std::string out = folder_ + "/out";
  const json step = simulated("--hardware 4xPCIe --out " + out);
  const Result result = run("analyze --json " + out);
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

// One rank that computes twice as long holds all up; ranks alike simulated one by one are as one.
TEST_F(SimulateCommandTest, EachRank) {
  const std::string flags = "--hardware 8xH100 --batch 64 --seq 64 ";
  const json one = simulated(flags), all = simulated(flags + "--ranks all"),
             slow = simulated(flags + "--slow-rank 3:2");
  EXPECT_EQ(one, all);
  EXPECT_GT(slow["step_ns"].get<int64_t>(), one["step_ns"].get<int64_t>());
}

TEST_F(SimulateCommandTest, BadInputIsNamed) {
  refused("", 2, "--hardware");
  refused("--hardware 8xH10", 3, "did you mean '8xH100'?");
  refused("--hardware ab:0:inf", 2, "how long a GPU computes");
  refused("--hardware 8xH100 --world-size 16", 3, "8xH100 has 8 GPUs");
  refused("--hardware 8xH100 --slow-rank 9:2", 2, "RANK:FACTOR");
  refused("--hardware 8xH100 --batch 0", 2, "--batch 0");
  refused("--hardware 8xH100 --strategy replicate", 3, "not supported by the simulator yet");
  std::ofstream(folder_ + "/plan.json")
      << R"({"version": 1, "activation_checkpointing": ["model.layers.*"]})";
  refused("--hardware 8xH100 --plan " + folder_ + "/plan.json", 3,
          "plan.json#/activation_checkpointing");
}

TEST_F(SimulateCommandTest, TextNamesThePeak) {
  const Result result = run("simulate --model " + kLlama + " --hardware 8xH100");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("exposed communication"));
  EXPECT_THAT(result.out, HasSubstr("alive at the peak"));
  EXPECT_THAT(result.out, HasSubstr("fits"));
}

}  // namespace
}  // namespace shardlens
