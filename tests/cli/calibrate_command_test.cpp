#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/shardlens_command.h"

namespace shardlens {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kCapture = std::string(SHARDLENS_SOURCE_DIR) + "/traces/llama-emulated8";
const std::string kPyTorch = std::string(SHARDLENS_TEST_DATA) + "/pytorch_traces/fsdp2-default";

class CalibrateCommandTest : public ShardlensCommandTest {
 protected:
  json answer(const std::string& arguments) {
    const CommandResult result = run(arguments);
    EXPECT_EQ(result.code, 0) << arguments << ": " << result.err;
    return json::parse(result.out);
  }
  void refused(const std::string& arguments, int code, const std::string& message) {
    const CommandResult result = run(arguments);
    EXPECT_EQ(result.code, code) << arguments << ": " << result.err;
    EXPECT_THAT(result.err, HasSubstr(message)) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
  }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }
};

// The capture's collectives take 5 ms each, its steps 237 to 275 ms (traces/README.md).
TEST_F(CalibrateCommandTest, WritesWhatSimulateTakes) {
  const std::string file = folder_ + "/calibration.json";
  const json written = answer("calibrate --json --capture " + kCapture + " --out " + file);
  EXPECT_EQ(written["host"], "compute");
  EXPECT_EQ(written["emulated"]["hardware"], "ab:5000:inf");
  EXPECT_GT(written["emulated"]["overhead_us"].get<double>(), 0);
  EXPECT_LT(written["emulated"]["overhead_us"].get<double>(), 1000);
  EXPECT_EQ(json::parse(text(file)), written);
  // Candidates whose collectives were not measured are counted as refused.
  const CommandResult search = run("search --json --memory-limit 1GiB --batch 1 --seq 16 --model " +
                                   kCapture + " --calibration " + file);
  ASSERT_EQ(search.code, 0) << search.err;
  const json among = json::parse(search.out);
  EXPECT_EQ(
      among["evaluated"].get<int>() + among["pruned"].get<int>() + among["refused"].get<int>(),
      among["candidates"].get<int>());
  EXPECT_GT(among["evaluated"], 0);
  const std::string simulate = "simulate --json --model " + kCapture + " --calibration " + file +
                               " --batch 4 --seq 128 --world-size 8";
  const int64_t slow = answer(simulate)["step_ns"];
  const int64_t fast = answer(simulate + " --hardware ab:0:inf")["step_ns"];
  // Each of the plan's 20 collectives costs 5 ms where it is exposed.
  EXPECT_GT(slow - fast, 10'000'000);
  EXPECT_GT(fast, 100'000'000);
}

TEST_F(CalibrateCommandTest, SimulatesARecordedRunAfterItsOwnBaseline) {
  const json out = answer("simulate --json --workload " + kCapture + " --strategy no_shard");
  EXPECT_NEAR(out["baseline"]["error"].get<double>(), 0, 0.06);
  EXPECT_NEAR(out["baseline"]["measured_step_ns"].get<double>(), 245e6, 10e6);
  EXPECT_GT(out["step_ns"].get<int64_t>(), 100'000'000);
}

// The trace was recorded on a busy machine, so its times mean little. But its own plan, simulated
// from the parts of the trace, must give about the measured step time.
TEST_F(CalibrateCommandTest, SimulatesPyTorchsTraceUnderOtherPlans) {
  const json same = answer("simulate --json --workload " + kPyTorch);
  EXPECT_NEAR(same["baseline"]["error"].get<double>(), 0, 0.25);
  EXPECT_EQ(same["step_ns"], same["baseline"]["simulated_step_ns"]);
  const json kept = answer("simulate --json --strategy shard_grad_op --workload " + kPyTorch);
  EXPECT_EQ(kept["baseline"], same["baseline"]);
  EXPECT_NE(kept["step_ns"], same["step_ns"]);
}

TEST_F(CalibrateCommandTest, SaysWhatIsWrongWithARun) {
  const std::string out = " --out " + folder_ + "/c.json";
  refused("calibrate" + out, 2, "--capture");
  refused("calibrate --capture " + kCapture, 2, "--out");
  refused("calibrate --capture " + folder_ + out, 3, "the directory contains no trace");
  refused("calibrate --capture /nowhere" + out, 3, "/nowhere");
  write("plain.json", R"({"traceEvents": []})");
  refused("calibrate --capture " + folder_ + "/plain.json" + out, 3, "no ranges of FSDP");
  refused("calibrate --capture " + kCapture + " --capture " + kPyTorch + out, 3,
          "calibrate them separately");
}

TEST_F(CalibrateCommandTest, SaysWhatSimulateCannotTake) {
  const std::string model = "simulate --model " + kCapture;
  refused("simulate --hardware 8xH100", 2, "--model is required");
  refused(model, 2, "--hardware is required");
  refused(model + " --hardware ab:1:inf", 2, "add --calibration");
  refused(model + " --workload " + kCapture, 2, "--workload");
  refused("simulate --workload " + kCapture + " --precision bf16", 2, "--precision");
  refused(model + " --calibration " + kCapture + "/plan.json", 3, "plan.json");
  refused(model + " --calibration /nowhere", 3, "/nowhere");
  // Two ranks were recorded; times of collectives between four are unknown.
  refused("simulate --world-size 4 --workload " + kPyTorch, 3, "between 4 ranks");
  EXPECT_EQ(run("simulate --world-size 4 --hardware 8xH100 --workload " + kPyTorch).code, 0);
}

}  // namespace
}  // namespace shardlens
