#include "cli/capture/supervisor.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens::cli {
namespace {

using testing::Contains;
using testing::HasSubstr;

struct Line {
  int rank;
  Output output;
  std::string text;
};

struct Ran {
  SupervisorResult result;
  std::vector<Line> lines;
  std::chrono::milliseconds took{};

  [[nodiscard]] std::vector<std::string> of(int rank, Output output) const {
    std::vector<std::string> texts;
    for (const Line& line : lines) {
      if (line.rank == rank && line.output == output) {
        texts.push_back(line.text);
      }
    }
    return texts;
  }
};

SupervisorOptions scripted(std::vector<std::string> arguments) {
  SupervisorOptions options;
  options.program = SHARDLENS_SCRIPTED_WORKER;
  options.processes = static_cast<int>(arguments.size());
  options.arguments = std::move(arguments);
  options.directory = testing::TempDir();
  options.grace = std::chrono::milliseconds(400);
  options.interrupt_grace = std::chrono::milliseconds(400);
  return options;
}

Ran run(SupervisorOptions options) {
  Ran ran;
  options.sink = [&ran](int rank, Output output, std::string_view text) {
    ran.lines.push_back({rank, output, std::string(text)});
  };
  const auto start = std::chrono::steady_clock::now();
  ran.result = supervise(options);
  ran.took = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - start);
  return ran;
}

bool alive(int pid) {
  return ::kill(pid, 0) == 0;
}

TEST(SupervisorTest, EndsWellWhenAllWorkersDo) {
  const Ran ran = run(scripted({"0=exit:0", "1=exit:0", "2=late_exit:0"}));
  EXPECT_EQ(ran.result.exit_code, 0);
  EXPECT_EQ(ran.result.message, "");
}

TEST(SupervisorTest, GivesWorkersTheStandardEnvironmentAndAPrivateMeetingPlace) {
  ::setenv("SHARDLENS_TEST_KEPT", "yes", 1);
  ::setenv("RANK", "77", 1);
  const Ran ran = run(scripted({"0=environment", "1=environment"}));
  ::unsetenv("RANK");
  const auto lines = ran.of(1, Output::kStdout);
  EXPECT_THAT(lines, Contains("RANK=1"));
  EXPECT_THAT(lines, Contains("LOCAL_RANK=1"));
  EXPECT_THAT(lines, Contains("WORLD_SIZE=2"));
  EXPECT_THAT(lines, Contains("MASTER_ADDR=127.0.0.1"));
  EXPECT_THAT(lines, Contains("SHARDLENS_TEST_KEPT=yes"));
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines.back(), HasSubstr("mode=700"));
  EXPECT_EQ(lines.back(), ran.of(0, Output::kStdout).back());
  const std::string store = lines.back().substr(6, lines.back().find(" mode") - 6);
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(store).parent_path()))
      << "left behind: " << store;
}

TEST(SupervisorTest, PassesOnEveryLineOfBothStreams) {
  const Ran ran = run(scripted({"0=print", "1=print"}));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(ran.of(rank, Output::kStdout),
                testing::ElementsAre("one", "two " + std::to_string(rank), "no newline"));
    EXPECT_THAT(ran.of(rank, Output::kStderr),
                testing::ElementsAre("plain", "[rank " + std::to_string(rank) + "] prefixed"));
  }
}

TEST(SupervisorTest, PrefixesLinesOfStderrAndShowsEqualOnesOnce) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const SupervisorResult result = supervise(scripted({"0=print", "1=print"}));
  const std::string out = testing::internal::GetCapturedStdout();
  const std::string err = testing::internal::GetCapturedStderr();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(out, HasSubstr("two 1\n"));
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 2) << err;
  EXPECT_THAT(err, testing::MatchesRegex("(\\[rank [01]\\] (plain|prefixed)\n)+"));
}

TEST(SupervisorTest, DoesNotStallOnWorkersThatPrintMuch) {
  const Ran ran = run(scripted({"0=flood", "1=flood"}));
  EXPECT_EQ(ran.result.exit_code, 0);
  EXPECT_EQ(ran.of(0, Output::kStdout).size(), 200000U);
  EXPECT_EQ(ran.of(1, Output::kStdout).back(),
            "line 199999 of a long output that fills every pipe");
}

TEST(SupervisorTest, TakesTheExitCodeOfTheRankThatFailed) {
  const Ran ran = run(scripted({"0=sleep", "1=exit:3"}));
  EXPECT_EQ(ran.result.exit_code, 3);
  EXPECT_THAT(ran.result.message, HasSubstr("rank 1"));
  EXPECT_THAT(ran.result.message, HasSubstr("exit code 3"));
  EXPECT_LT(ran.took, std::chrono::seconds(5));
}

TEST(SupervisorTest, NamesRankSignalAndLastActionOfAKilledWorker) {
  const Ran ran = run(scripted({"0=sleep", "1=now:" + testing::TempDir()}));
  EXPECT_EQ(ran.result.exit_code, 4);
  EXPECT_EQ(
      ran.result.message,
      "rank 1 was killed by signal 9 (Killed); it was at step 4, hook pre_forward (layers.0)");
  std::filesystem::remove(std::filesystem::path(testing::TempDir()) / "rank1.now");
}

TEST(SupervisorTest, BlamesTheDeathAndNotTheErrorThatItCausedElsewhere) {
  const Ran ran = run(scripted({"0=exit:4", "1=late_exit:4", "2=crash"}));
  EXPECT_EQ(ran.result.exit_code, 4);
  EXPECT_THAT(ran.result.message, HasSubstr("rank 2 was killed by signal 11"));
  const Ran input = run(scripted({"0=exit:4", "1=late_exit:3"}));
  EXPECT_EQ(input.result.exit_code, 3);
  EXPECT_THAT(input.result.message, HasSubstr("rank 1"));
}

TEST(SupervisorTest, KillsWhatIgnoresSigterm) {
  const Ran ran = run(scripted({"0=stubborn", "1=exit:2"}));
  EXPECT_EQ(ran.result.exit_code, 2);
  EXPECT_LT(ran.took, std::chrono::seconds(5));
}

TEST(SupervisorTest, LeavesNoGrandchildBehind) {
  const Ran ran = run(scripted({"0=orphan"}));
  EXPECT_EQ(ran.result.exit_code, 0);
  const auto lines = ran.of(0, Output::kStdout);
  ASSERT_EQ(lines.size(), 1U);
  const int orphan = std::atoi(lines[0].c_str() + 7);
  // A zombie that is not reaped still accepts signals; what matters is that it does not run.
  const auto running = [orphan] {
    return alive(orphan) &&
           ::access(("/proc/" + std::to_string(orphan) + "/exe").c_str(), R_OK) == 0;
  };
  for (int i = 0; i < 1000 && running(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_FALSE(running());
}

TEST(SupervisorTest, EndsTheRunWhenInterrupted) {
  for (const int signal : {SIGINT, SIGTERM}) {
    SupervisorOptions options = scripted({"0=stubborn", "1=sleep"});
    SupervisorResult result;
    std::vector<std::string> lines;
    options.sink = [&](int, Output, std::string_view text) {
      lines.emplace_back(text);
      // Sent once the worker ignores SIGTERM. The signal is blocked, so the supervisor reads it.
      ::kill(::getpid(), signal);
    };
    result = supervise(options);
    EXPECT_EQ(result.exit_code, 128 + signal);
    EXPECT_THAT(result.message, HasSubstr("interrupted by signal " + std::to_string(signal)));
    EXPECT_THAT(lines, Contains("ready"));
  }
}

// As under nohup.
TEST(SupervisorTest, IgnoresSignalsThatItsCallerIgnored) {
  const auto before = ::signal(SIGHUP, SIG_IGN);
  SupervisorOptions options = scripted({"0=print"});
  options.sink = [](int, Output, std::string_view) { ::kill(::getpid(), SIGHUP); };
  const SupervisorResult result = supervise(options);
  ::signal(SIGHUP, before);
  EXPECT_EQ(result.exit_code, 0) << result.message;
}

// It is stopped after the supervisor looked for output, and before it looks for stopped ranks.
TEST(SupervisorTest, NamesTheRankThatIsStoppedAfterItsOutput) {
  SupervisorOptions options = scripted({"0=print", "1=late_stop"});
  std::vector<std::string> told;
  options.sink = [&told](int rank, Output, std::string_view text) {
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(text == "one" ? 300 : 0));
      return;
    }
    told.emplace_back(text);
    if (told.size() == 2) {
      const std::string& number = told[told[0].starts_with("my number ") ? 0 : 1];
      ::kill(std::atoi(number.c_str() + 10), SIGCONT);
    }
  };
  const SupervisorResult result = supervise(options);
  EXPECT_EQ(result.exit_code, 0) << result.message;
  ASSERT_GE(told.size(), 2U);
  EXPECT_THAT(told[0], HasSubstr("my number "));
  EXPECT_THAT(told[1], HasSubstr("was stopped by a signal"));
}

TEST(SupervisorTest, EndsWhenItsDirectoryIsRemoved) {
  SupervisorOptions options = scripted({"0=sleep", "1=print"});
  options.directory = std::filesystem::path(testing::TempDir()) / "shardlens-removed";
  std::filesystem::create_directory(options.directory);
  options.sink = [&options](int, Output, std::string_view) {
    std::filesystem::remove_all(options.directory);
  };
  const SupervisorResult result = supervise(options);
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.message, HasSubstr("shardlens-removed was removed while the run wrote to it"));
}

TEST(SupervisorTest, EndsARunThatTakesTooLong) {
  SupervisorOptions options = scripted({"0=sleep", "1=sleep"});
  options.longest = std::chrono::milliseconds(50);
  const Ran ran = run(options);
  EXPECT_EQ(ran.result.exit_code, 4);
  EXPECT_EQ(ran.result.message, "the run did not end within 0.05 s");
}

TEST(SupervisorTest, CallsTheRankOfAnEmulatedWorldByItsNumber) {
  SupervisorOptions options = scripted({"0=exit:3"});
  options.first_rank = 5;
  const Ran ran = run(options);
  EXPECT_THAT(ran.result.message, HasSubstr("rank 5 "));
}

TEST(SupervisorTest, NamesTheProgramItCannotStart) {
  SupervisorOptions options = scripted({"0=exit:0"});
  options.program = "/nonexistent/shardlens-worker";
  try {
    (void)supervise(options);
    FAIL() << "no error";
  } catch (const RuntimeFault& error) {
    EXPECT_THAT(error.what(), HasSubstr("/nonexistent/shardlens-worker"));
    EXPECT_THAT(error.what(), HasSubstr("No such file"));
  }
}

}  // namespace
}  // namespace shardlens::cli
