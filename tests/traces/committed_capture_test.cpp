// `scripts/demo --analysis` shows the captures under traces/: their figures must stay those that
// were read by hand, and other tools must be able to open them.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

namespace {

constexpr const char* kCapture = SHARDLENS_SOURCE_DIR "/traces/llama-emulated8";
constexpr const char* kOfGpu = SHARDLENS_SOURCE_DIR "/traces/llama-h200";
constexpr const char* kOfPyTorch = SHARDLENS_SOURCE_DIR "/traces/fsdp2-h200";

struct Output {
  int status = -1;
  std::string text;
};

Output run(const std::string& command) {
  Output output;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) {
    return output;
  }
  std::array<char, 4096> buffer{};
  for (size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    output.text.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  output.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

nlohmann::json answer(const std::string& words) {
  const Output output = run(SHARDLENS_BIN_DIR "/shardlens " + words);
  EXPECT_TRUE(output.status == 0 || output.status == 5) << words;
  return nlohmann::json::parse(output.text);
}

nlohmann::json analysis(const char* capture = kCapture) {
  return answer(std::string("analyze --json ") + capture);
}

TEST(CommittedCaptureTest, FiguresAreThoseNotedInItsReadme) {
  const nlohmann::json rank = analysis()["ranks"][0];
  std::ifstream file(SHARDLENS_TEST_DATA "/llama-emulated8.expected.json");
  const nlohmann::json expected = nlohmann::json::parse(file);
  for (const auto& [key, value] : expected.items()) {
    nlohmann::json with_expected = rank[key];
    with_expected.merge_patch(value);  // ignores keys that were added later
    EXPECT_EQ(rank[key], with_expected) << key;
  }
}

TEST(CommittedCaptureTest, CountsFollowFromThePlan) {
  const nlohmann::json rank = analysis()["ranks"][0];
  // Six blocks and the root, three recorded steps: the root is kept after forward.
  EXPECT_EQ(rank["collectives"]["all_gather"]["count"], 3 * (7 + 6));
  EXPECT_EQ(rank["collectives"]["reduce_scatter"]["count"], 3 * 7);
  EXPECT_EQ(rank["steps"].size(), 3U);
  EXPECT_EQ(rank["order"]["planned_vs_issued"]["compared"], 3 * 20);
  EXPECT_TRUE(rank["order"]["planned_vs_issued"]["first_difference"].is_null());
  EXPECT_TRUE(rank["order"]["issued_vs_started"]["first_difference"].is_null());
  EXPECT_EQ(rank["compute_ns"].get<int64_t>() + rank["exposed_comm_ns"].get<int64_t>() +
                rank["exposed_copy_ns"].get<int64_t>() + rank["idle_ns"].get<int64_t>(),
            rank["span_ns"].get<int64_t>());
}

TEST(CommittedCaptureTest, OnAGpuCountsFollowFromThePlan) {
  const nlohmann::json rank = analysis(kOfGpu)["ranks"][0];
  // Four blocks and the root, four recorded steps: the root is kept after forward.
  EXPECT_EQ(rank["collectives"]["all_gather"]["count"], 4 * (5 + 4));
  EXPECT_EQ(rank["collectives"]["reduce_scatter"]["count"], 4 * 5);
  for (const char* order : {"planned_vs_issued", "issued_vs_started"}) {
    EXPECT_EQ(rank["order"][order]["compared"], 4 * (9 + 5)) << order;
    EXPECT_TRUE(rank["order"][order]["first_difference"].is_null()) << order;
  }
  for (const nlohmann::json& unit : rank["units"]) {
    if (unit["fqn"] == "<none>") {
      EXPECT_EQ(unit["compute_ns"], 0);  // every kernel belongs to a unit or to a part of the step
    }
  }
}

// The simulation of a capture on its own machine takes as long, and as much memory, as the capture.
// The allocator's peak also has the workspaces of cuBLAS, 32 MiB in each of two threads.
TEST(CommittedCaptureTest, OnAGpuTheSimulationIsNearTheMeasurement) {
  const nlohmann::json baseline = answer(std::string("advise --json ") + kOfGpu)["baseline"];
  EXPECT_NEAR(baseline["error"], 0, 0.08);
  std::ifstream file(std::string(kOfGpu) + "/metrics.jsonl");
  std::string line, last;
  while (std::getline(file, line)) {
    last = line;
  }
  const double measured =
      nlohmann::json::parse(last)["peak_allocated_bytes"].get<double>() - 2 * 32 * 1024 * 1024;
  EXPECT_NEAR(baseline["peak_allocated_bytes"].get<double>() / measured, 1, 0.04);
}

TEST(CommittedCaptureTest, EveryOperatorOfTheGpuIsMeasured) {
  const std::string out = testing::TempDir() + "/calibration.json";
  const Output output = run(std::string(SHARDLENS_BIN_DIR "/shardlens calibrate --capture ") +
                            kOfGpu + " --out " + out);
  EXPECT_EQ(output.status, 0);
  EXPECT_EQ(output.text.find("have no operator of that name"), std::string::npos) << output.text;
}

TEST(CommittedCaptureTest, PyTorchOnAGpuIsSimulatedToo) {
  EXPECT_NEAR(answer(std::string("advise --json ") + kOfPyTorch)["baseline"]["error"], 0, 0.08);
}

TEST(CommittedCaptureTest, HolisticTraceAnalysisOpensIt) {
  const char* python = std::getenv("SHARDLENS_TEST_PYTHON");
  if (python == nullptr) {
    GTEST_SKIP() << "SHARDLENS_TEST_PYTHON is not set (scripts/test sets it)";
  }
  const Output output =
      run(std::string(python) + " " SHARDLENS_SOURCE_DIR "/tests/tools/open_in_hta.py " + kCapture +
          " 2>/dev/null");
  ASSERT_EQ(output.status, 0) << output.text;
  // rank=events/steps/collectives; the loss is all-reduced once per step.
  EXPECT_NE(output.text.find("0="), std::string::npos);
  EXPECT_NE(output.text.find("/3/" + std::to_string(3 * (7 + 6 + 7 + 1))), std::string::npos)
      << output.text;
}

}  // namespace
