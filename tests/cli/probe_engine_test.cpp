// `calibrate --probe` measures this machine with runs that it starts itself.
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/shardlens_command.h"

namespace shardlens {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class ProbeTest : public ShardlensCommandTest {};

TEST_F(ProbeTest, MeasuresThisMachineForModelsThatDidNotRun) {
  const std::string file = folder_ + "/this-machine.json", kept = folder_ + "/kept";
  const CommandResult probed = run("calibrate --probe --json --keep " + kept + " --out " + file);
  ASSERT_EQ(probed.code, 0) << probed.err;
  EXPECT_THAT(probed.err, HasSubstr("probe 7 of 7: hidden 1024"));
  const json found = json::parse(probed.out);
  EXPECT_EQ(found, json::parse(text(file)));
  EXPECT_EQ(found["host"], "compute");
  EXPECT_EQ(found["ranks"], 2);
  EXPECT_FALSE(found.contains("emulated") && found["emulated"].contains("hardware") &&
               found["emulated"]["hardware"] != "");
  std::map<std::string, size_t> sizes;
  std::map<std::string, int64_t> largest;
  for (const json& curve : found["curves"]) {
    sizes[curve["kind"]] = curve["points"].size();
    largest[curve["kind"]] = curve["points"].back()[0];
  }
  // Root and blocks of four widths; replicated models have buckets.
  EXPECT_EQ(sizes["all_gather"], 8U);
  EXPECT_EQ(sizes["reduce_scatter"], 8U);
  EXPECT_GE(sizes["all_reduce"], 4U);
  EXPECT_GE(largest["all_reduce"], 25 << 20);
  int gemms = 0;
  for (const json& each : found["operators"]) {
    gemms += each["name"] == "aten::mm" ? 1 : 0;
  }
  EXPECT_GT(gemms, 20);
  // The captures that --keep kept are ordinary captures.
  EXPECT_EQ(run("analyze '" + kept + "/hidden 128, 2 x 64 tokens, full_shard' --json").code, 0);

  std::ofstream(folder_ + "/config.json") << R"({"model_type": "llama", "vocab_size": 1000,
      "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 5,
      "num_attention_heads": 6, "num_key_value_heads": 6, "max_position_embeddings": 256})";
  const CommandResult simulated = run("simulate --json --world-size 2 --batch 1 --seq 96 --model " +
                                      folder_ + "/config.json --calibration " + file);
  ASSERT_EQ(simulated.code, 0) << simulated.err;
  EXPECT_GT(json::parse(simulated.out)["step_ns"], 0);
}

TEST_F(ProbeTest, SaysWhatItCannotDo) {
  const std::string out = " --out " + folder_ + "/c.json";
  const auto refused = [&](const std::string& flags, int code, const std::string& message) {
    const CommandResult result = run("calibrate " + flags + out);
    EXPECT_EQ(result.code, code) << flags << ": " << result.err;
    EXPECT_THAT(result.err, HasSubstr(message)) << flags;
  };
  refused("", 2, "expected --capture PATH… or --probe");
  refused("--probe --capture x", 2, "--capture and --probe cannot be given together");
  refused("--keep x --capture x", 2, "--keep requires --probe");
  refused("--probe --nproc 0", 2, "--nproc 0: expected at least 1");
  std::ofstream(folder_ + "/other") << "x";
  refused("--probe --keep " + folder_, 2, "is not an empty directory");
}

}  // namespace
}  // namespace shardlens
