#include "cli/capture/repeated_capture.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace shardlens::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

RepeatedCapture repeated(const std::vector<std::string>& flags, size_t ranks = 2) {
  std::vector<std::string> command{"shardlens", "capture", "--model", "m", "--tokens", "t"};
  command.insert(command.end(), flags.begin(), flags.end());
  const nlohmann::json about{{"command", command}};
  return repeated_capture(about.dump(), "run", ranks, "--measure");
}

std::string refusal(const std::vector<std::string>& flags, size_t ranks = 2) {
  try {
    (void)repeated(flags, ranks);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(RepeatedCaptureTest, KeepsWhatDecidesAStep) {
  const std::vector<std::string> flags{
      "--plan",      "p.json",    "--mesh",       "1x2",      "--batch",   "4",    "--seq",
      "32",          "--steps",   "20",           "--warmup", "2",         "--lr", "0.5",
      "--optimizer", "sgd",       "--clip",       "1",        "--seed",    "7",    "--precision",
      "bf16",        "--no-sync", "--accumulate", "2",        "--timeout", "60"};
  RunOptions expected;
  expected.model = "m";
  expected.tokens = "t";
  expected.plan = "p.json";
  expected.mesh = "1x2";
  expected.step = {.batch = 4, .seq = 32};
  expected.step.accumulate = 2;
  expected.step.sync_every_microbatch = false;
  expected.step.optimizer = plan::Optimizer::kSgd;
  expected.step.clip = 1;
  expected.steps = 20;
  expected.warmup = 2;
  expected.lr = 0.5;
  expected.seed = 7;
  expected.precision = Precision::kBf16;
  expected.timeout = 60;
  const RepeatedCapture found = repeated(flags);
  EXPECT_EQ(found.options, expected);
  EXPECT_THAT(found.left_out, IsEmpty());
}

// Whoever wrote the file would otherwise choose what this user's capture overwrites.
TEST(RepeatedCaptureTest, LeavesOutWhatWritesContinuesOrWaits) {
  const RepeatedCapture found = repeated({"--out",
                                          "/etc",
                                          "--out=/usr",
                                          "--save",
                                          "/home",
                                          "--save-every",
                                          "1",
                                          "--keep",
                                          "1",
                                          "--save-async",
                                          "--resume",
                                          "/r",
                                          "--trigger-file",
                                          "/t",
                                          "--on-signal",
                                          "3",
                                          "--record-limit",
                                          "9",
                                          "--record-newest",
                                          "--host-name"});
  EXPECT_EQ(found.options, repeated({}).options);
  EXPECT_EQ(found.options.out, "");
  EXPECT_THAT(found.left_out,
              ElementsAre("--save /home", "--save-every 1", "--keep 1", "--resume /r",
                          "--trigger-file /t", "--on-signal 3", "--record-limit 9",
                          "--record-newest", "--save-async", "--host-name"));
}

TEST(RepeatedCaptureTest, LimitsStepsThreadsAndTime) {
  const RepeatedCapture found = repeated(
      {"--steps", "1000000", "--warmup", "999999", "--threads", "1000000", "--timeout", "86400"});
  EXPECT_EQ(found.options.steps, 100);
  EXPECT_EQ(found.options.warmup, 20);
  EXPECT_LE(found.options.threads, 4096);
  EXPECT_EQ(found.options.timeout, 300);
  EXPECT_THAT(found.left_out, ElementsAre("--steps 1000000", "--warmup 999999", "--threads 1000000",
                                          "--timeout 86400"));
}

TEST(RepeatedCaptureTest, StartsNoMoreProcessesThanRanksWereRecorded) {
  EXPECT_EQ(repeated({"--nproc", "4"}, 4).options.nproc, 4);
  EXPECT_THAT(refusal({"--nproc", "1024"}), HasSubstr("traces of 2 ranks"));
  EXPECT_EQ(repeated({"--backend", "emulated", "--world-size", "8"}, 1).options.world_size, 8);
}

TEST(RepeatedCaptureTest, RefusesWhatIsNoCapture) {
  EXPECT_THAT(refusal({"--no-such-flag"}), HasSubstr("--measure"));
  EXPECT_THAT(refusal({"--help"}), HasSubstr("--measure"));
  for (const char* json :
       {"", "[]", "{}", R"({"command": ["python", "train.py"]})", R"({"command": 7})",
        R"({"command": ["shardlens", "check", "--run"]})"}) {
    EXPECT_THROW((void)repeated_capture(json, "run", 2, "--measure"), UsageError) << json;
  }
}

}  // namespace
}  // namespace shardlens::cli
