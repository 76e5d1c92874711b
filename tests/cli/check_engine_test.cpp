// `shardlens check --run --against` with real captures.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/shardlens_command.h"

namespace shardlens {
namespace {

using testing::HasSubstr;

class CheckEngineTest : public ShardlensCommandTest {
 protected:
  [[nodiscard]] static std::string flags(const std::string& more = "") {
    return "'--model " SHARDLENS_TEST_DATA "/gpt2-tiny --tokens " SHARDLENS_TEST_DATA
           "/tokens.u16.bin --backend emulated --world-size 8 --hardware ab:200:inf --steps 13 "
           "--warmup 1 --seq 16 " +
           more + "'";
  }
};

TEST_F(CheckEngineTest, AnotherStructureIsFoundAfterOnePair) {
  std::ofstream(folder_ + "/plan.json") << R"({"version": 1, "backward_prefetch": "none"})";
  const CommandResult result = run("check --against " + flags() + " --run " +
                                   flags("--plan " + folder_ + "/plan.json") + " --json");
  EXPECT_EQ(result.code, 1) << result.err;
  const auto out = nlohmann::json::parse(result.out);
  EXPECT_EQ(out["structural"].size(), 5U) << out["structural"];  // four units, bytes in flight
  EXPECT_EQ(out["structural"][0]["kind"], "prefetch");
  EXPECT_EQ(out["structural"][0]["candidate"], "all_gather for backward not prefetched");
  EXPECT_THAT(out["notes"].dump(), HasSubstr("decided after 1 of 5 pairs"));
  EXPECT_THAT(out["causes"].dump(), HasSubstr("backward_prefetch: was"));
}

// Times depend on the machine: the limit is one that every machine stays below.
TEST_F(CheckEngineTest, SameProgramIsDecidedByTheThirdPair) {
  const CommandResult result =
      run("check --against " + flags() + " --run " + flags() + " --runs 3 --out " + folder_ +
          "/kept --metric structure --metric step_time:100s --json");
  EXPECT_EQ(result.code, 2);  // seconds are not a unit of limits
  const CommandResult again =
      run("check --against " + flags() + " --run " + flags() + " --runs 3 --out " + folder_ +
          "/kept --metric structure --metric step_time:100000ms --json");
  EXPECT_EQ(again.code, 0) << again.err << again.out;
  for (const char* name : {"baseline-1", "candidate-1", "baseline-3", "candidate-3"}) {
    EXPECT_TRUE(std::filesystem::exists(folder_ + "/kept/" + name + "/rank0.pt.trace.json.gz"))
        << name;
  }
}

}  // namespace
}  // namespace shardlens
