// "-" is standard input wherever a command reads a file.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/shardlens_command.h"

namespace shardlens {
namespace {

using testing::HasSubstr;

class StdinTest : public ShardlensCommandTest {
 protected:
  // `cat FILE | shardlens ARGUMENTS`
  CommandResult piped(const std::string& file, const std::string& arguments) const {
    return run("--version >/dev/null; (cat " + file + " | " SHARDLENS_BIN_DIR "/shardlens " +
               arguments + ")");
  }
  const std::string trace_ =
      SHARDLENS_TEST_DATA "/pytorch_traces/fsdp2-default/rank0.pt.trace.json.gz";
};

TEST_F(StdinTest, ATraceAModelAndAPlanAreReadFromAPipe) {
  const CommandResult file = run("analyze " + trace_ + " --csv");
  ASSERT_EQ(file.code, 0) << file.err;
  const CommandResult pipe = piped(trace_, "analyze - --csv");
  EXPECT_EQ(pipe.code, 0) << pipe.err;
  EXPECT_EQ(pipe.out, file.out);

  const std::string config = SHARDLENS_TEST_DATA "/llama-tiny/config.json";
  const std::string of_file = run("plan --model " + config + " --world-size 4 --json").out;
  EXPECT_THAT(of_file, HasSubstr("units"));
  EXPECT_EQ(piped(config, "plan --model - --world-size 4 --json").out, of_file);
  EXPECT_EQ(piped(config, "plan --model=- --world-size 4 --json").out, of_file);
}

TEST_F(StdinTest, WhatCannotBeReadIsRefused) {
  const CommandResult twice = piped(trace_, "compare - -");
  EXPECT_EQ(twice.code, 2);
  EXPECT_THAT(twice.err, HasSubstr("standard input can be read once"));
  const CommandResult cut = piped(trace_, "convert - --out " + folder_ + "/cut.json.gz");
  EXPECT_EQ(cut.code, 3);
  EXPECT_THAT(cut.err, HasSubstr("convert reads its input twice"));
  const CommandResult nothing = run("analyze -");  // /dev/null
  EXPECT_EQ(nothing.code, 3);
  EXPECT_THAT(nothing.err, HasSubstr("/dev/stdin"));
}

}  // namespace
}  // namespace shardlens
