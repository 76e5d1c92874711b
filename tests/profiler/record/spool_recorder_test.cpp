#include "profiler/record/host/spool_recorder.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "profiler/trace/spool/spool_format.h"
#include "tests/profiler/record/recorded_run.h"

namespace shardlens::record {
namespace {

using trace::Spool;
using trace::SpoolRecord;
using trace::SpoolType;

std::vector<SpoolRecord> of_type(const Spool& spool, SpoolType type) {
  std::vector<SpoolRecord> found;
  for (const SpoolRecord& record : spool.records) {
    if (record.type == type) {
      found.push_back(record);
    }
  }
  return found;
}

// A rank that is started twice would write between the other's records.
TEST(SpoolRecorderTest, OneProcessAtATimeRecordsToASpool) {
  const TestDirectory directory;
  {
    SpoolRecorder first(options_in(directory.path()));
    first.units(unit_names());
    EXPECT_THROW(
        {
          try {
            SpoolRecorder second(options_in(directory.path()));
          } catch (const RuntimeFault& error) {
            EXPECT_THAT(error.what(), ::testing::HasSubstr("rank1.spool: another process"));
            throw;
          }
        },
        RuntimeFault);
    first.finish();
  }
  EXPECT_EQ(trace::read_spool(directory.path() / "rank1.spool").units, unit_names());
  SpoolRecorder third(options_in(directory.path()));  // the lock ended with the first
}

TEST(SpoolRecorderTest, KeepsEveryFieldOfWhatItIsTold) {
  const TestDirectory directory;
  const Nanoseconds before = now_ns();
  {
    SpoolRecorder recorder(options_in(directory.path()));
    recorder.units(unit_names());
    recorder.groups(std::vector<std::string>{"shard", "replicate", "sub_shard2"});
    uint32_t seq = 0;
    record_step(recorder, 0, seq);
    recorder.finish();
    EXPECT_EQ(recorder.dropped(), 0);
    EXPECT_EQ(recorder.error(), "");
  }
  const Nanoseconds after = now_ns();
  const Spool spool = trace::read_spool(directory.path() / "rank1.spool");

  EXPECT_EQ(spool.header.rank, 1);
  EXPECT_EQ(spool.header.world_size, 2);
  EXPECT_EQ(spool.header.process, ::getpid());
  EXPECT_TRUE(spool.ended);
  EXPECT_EQ(spool.damaged, 0);
  EXPECT_EQ(spool.truncated, 0);
  EXPECT_EQ(spool.units, unit_names());
  EXPECT_EQ(spool.groups, (std::vector<std::string>{"shard", "replicate", "sub_shard2"}));
  const auto metadata = nlohmann::json::parse(spool.metadata);
  EXPECT_EQ(metadata.at("backend"), "gloo");
  EXPECT_EQ(metadata.at("groups").at(0).at("ranks"), (std::vector<int>{0, 1}));

  const auto hooks = of_type(spool, SpoolType::kHook);
  ASSERT_EQ(hooks.size(), 3U);
  EXPECT_EQ(hooks[2].hook.seq, 3U);
  EXPECT_EQ(hooks[2].hook.unit, 2U);
  EXPECT_EQ(static_cast<Hook>(hooks[2].hook.hook), Hook::kPreForward);
  EXPECT_EQ(hooks[2].hook.grad_mode, 1);

  const auto actions = of_type(spool, SpoolType::kAction);
  ASSERT_EQ(actions.size(), 9U);
  EXPECT_EQ(actions[3].action.seq, 4U);
  EXPECT_EQ(actions[3].action.hook_seq, 2U);
  EXPECT_EQ(static_cast<schedule::Op>(actions[3].action.op), schedule::Op::kAllGather);
  EXPECT_EQ(actions[3].action.group, plan::kShardGroup);
  EXPECT_EQ(actions[2].action.group, mesh::kNoGroup);
  EXPECT_EQ(actions[3].action.generation, 3U);
  EXPECT_EQ(actions[3].action.thread, static_cast<uint32_t>(::getpid()));

  const auto collectives = of_type(spool, SpoolType::kCollective);
  ASSERT_EQ(collectives.size(), 3U);
  EXPECT_EQ(static_cast<DType>(collectives[0].b), DType::kBF16);
  EXPECT_EQ(collectives[0].collective.out_nelems, 1000);
  EXPECT_EQ(collectives[0].collective.start - collectives[0].collective.issued, 2000);
  EXPECT_EQ(collectives[0].collective.end - collectives[0].collective.issued, 5000);
  EXPECT_EQ(spool.texts.at(collectives[0].collective.group), "shard");

  const auto operators = of_type(spool, SpoolType::kOperator);
  ASSERT_EQ(operators.size(), 3U);
  EXPECT_EQ(spool.texts.at(operators[0].op.name), "aten::mm");
  EXPECT_EQ(operators[0].a, 2);
  EXPECT_THAT(operators[0].op.dims, testing::ElementsAre(128, 64, 64, 32, 0, 0));

  for (const SpoolRecord& record : of_type(spool, SpoolType::kRange)) {
    EXPECT_GE(record.range.start, before);
    EXPECT_LE(record.range.end, after);
  }
  EXPECT_EQ(of_type(spool, SpoolType::kRange).size(), 3U);
}

TEST(SpoolRecorderTest, RecordsNothingDuringWarmupButKeepsCounting) {
  const TestDirectory directory;
  SpoolOptions options = options_in(directory.path());
  options.warmup = 2;
  uint32_t seq = 0;
  {
    SpoolRecorder recorder(options);
    recorder.units(unit_names());
    for (int64_t step = 0; step < 2; ++step) {
      record_step(recorder, step, seq);
      EXPECT_FALSE(recorder.recording());
    }
    // A range that was open before recording began has no recorded start.
    recorder.range_begin(Range::kOptimizer, kNoUnit);
    record_step(recorder, 2, seq);
    EXPECT_TRUE(recorder.recording());
    recorder.range_end();
    // Issued during warmup, completed late.
    recorder.collective(all_gather_of(1, 99, 99, 1000));
    recorder.finish();
  }
  const Spool spool = trace::read_spool(directory.path() / "rank1.spool");
  const auto steps = of_type(spool, SpoolType::kStepBegin);
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].step.step, 2);
  EXPECT_EQ(of_type(spool, SpoolType::kHook).front().hook.seq, 7U);
  EXPECT_EQ(of_type(spool, SpoolType::kCollective).size(), 3U);
  EXPECT_EQ(of_type(spool, SpoolType::kRange).size(), 3U);
}

TEST(SpoolRecorderTest, RecordsOnlyStepsAtWhoseBeginTheTriggerFileExists) {
  const TestDirectory directory;
  SpoolOptions options = options_in(directory.path());
  options.trigger_file = directory.path() / "go";
  uint32_t seq = 0;
  {
    SpoolRecorder recorder(options);
    record_step(recorder, 0, seq);
    std::ofstream(options.trigger_file) << "x";
    record_step(recorder, 1, seq);
    std::filesystem::remove(options.trigger_file);
    record_step(recorder, 2, seq);
    recorder.finish();
  }
  const Spool spool = trace::read_spool(directory.path() / "rank1.spool");
  const auto steps = of_type(spool, SpoolType::kStepBegin);
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].step.step, 1);
}

TEST(SpoolRecorderTest, DropsAndCountsBeyondTheBudgetButMarksEveryStep) {
  const TestDirectory directory;
  SpoolOptions options = options_in(directory.path());
  options.budget = 64 * 40;
  options.buffer_records = 7;
  int64_t dropped = 0, kept = 0;
  uint32_t seq = 0;
  {
    SpoolRecorder recorder(options);
    for (int64_t step = 0; step < 10; ++step) {
      record_step(recorder, step, seq);
    }
    recorder.finish();
    dropped = recorder.dropped();
    kept = recorder.kept();
  }
  const Spool spool = trace::read_spool(directory.path() / "rank1.spool");
  // Ten steps of 3 hooks, 9 actions, 3 collectives, 3 operators and 3 ranges.
  int64_t events = 0;
  for (const SpoolRecord& record : spool.records) {
    events += record.type != SpoolType::kStepBegin && record.type != SpoolType::kStepEnd;
  }
  EXPECT_EQ(events + spool.dropped, 210);
  EXPECT_EQ(spool.dropped, dropped);
  EXPECT_GT(dropped, 150);
  EXPECT_EQ(of_type(spool, SpoolType::kStepEnd).size(), 10U);
  EXPECT_TRUE(spool.ended);
  EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(directory.path() / "rank1.spool")),
            64 * (kept + 1));
}

TEST(SpoolRecorderTest, TakesCollectivesAndOperatorsFromManyThreads) {
  const TestDirectory directory;
  SpoolOptions options = options_in(directory.path());
  options.buffer_records = 100;
  constexpr uint32_t kThreads = 4, kEach = 2000;
  {
    SpoolRecorder recorder(options);
    recorder.step_begin(0);
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&recorder, t] {
        for (uint32_t i = 0; i < kEach; ++i) {
          recorder.collective(all_gather_of(t, i, i + 1, now_ns()));
          recorder.op(recorder.text("aten::op" + std::to_string(i % 50)), 1000, 2000, nullptr);
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    recorder.step_end();
    recorder.finish();
  }
  const Spool spool = trace::read_spool(directory.path() / "rank1.spool");
  EXPECT_EQ(spool.damaged, 0);
  std::vector<uint32_t> next(kThreads, 0);
  for (const SpoolRecord& record : of_type(spool, SpoolType::kCollective)) {
    EXPECT_EQ(record.collective.sequence, next[record.collective.unit]++);
  }
  EXPECT_THAT(next, testing::Each(kEach));
  EXPECT_EQ(of_type(spool, SpoolType::kOperator).size(), size_t{kThreads} * kEach);
  EXPECT_EQ(spool.texts.size(), 51U);
}

TEST(SpoolRecorderTest, KeepsWhatWasWrittenWhenTheProcessIsKilled) {
  const TestDirectory directory;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    SpoolRecorder recorder(options_in(directory.path()));
    recorder.units(unit_names());
    uint32_t seq = 0;
    for (int64_t step = 0; step < 3; ++step) {
      record_step(recorder, step, seq);
    }
    recorder.flush();
    recorder.step_begin(3);
    recorder.hook({.hook = Hook::kPreForward, .unit = 1});
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const Spool spool = trace::read_spool(directory.path() / "rank1.spool");
  EXPECT_FALSE(spool.ended);
  EXPECT_EQ(spool.damaged, 0);
  EXPECT_EQ(spool.units, unit_names());
  EXPECT_EQ(of_type(spool, SpoolType::kStepEnd).size(), 3U);
  EXPECT_EQ(of_type(spool, SpoolType::kAction).size(), 27U);
}

// A FIFO whose reader is slow, in place of a slow disk: the thread that trains does not wait for
// it, and neither does the one that reads the device's records.
TEST(SpoolRecorderTest, NobodyWaitsForTheFile) {
  const TestDirectory directory;
  const std::filesystem::path path = directory.path() / "rank1.spool";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  constexpr int kSteps = 200;  // 21 records each: more than a FIFO holds
  std::string bytes;
  {
    SpoolRecorder recorder(options_in(directory.path()));
    uint32_t seq = 0;
    std::thread device([&recorder] {
      SpoolRecord record;
      record.type = SpoolType::kExternal;
      for (int i = 0; i < kSteps; ++i) {
        recorder.device(record);
      }
    });
    for (int64_t step = 0; step < kSteps; ++step) {
      record_step(recorder, step, seq);
    }
    device.join();
    EXPECT_GT(recorder.kept(), kSteps * 22) << "all is recorded, and nothing was read";
    std::thread finishing([&recorder] { recorder.finish(); });
    ASSERT_EQ(::fcntl(reader, F_SETFL, 0), 0);
    const size_t expected = sizeof(trace::SpoolHeader) +
                            static_cast<size_t>(recorder.kept()) * trace::kSpoolRecordBytes;
    std::vector<char> piece(1 << 16);
    while (bytes.size() < expected) {
      const ssize_t got = ::read(reader, piece.data(), piece.size());
      ASSERT_GT(got, 0);
      bytes.append(piece.data(), static_cast<size_t>(got));
    }
    finishing.join();
    EXPECT_EQ(recorder.error(), "");
  }
  ::close(reader);
  const Spool spool = trace::parse_spool(bytes, "fifo");
  EXPECT_EQ(of_type(spool, SpoolType::kStepEnd).size(), size_t{kSteps});
  EXPECT_EQ(of_type(spool, SpoolType::kExternal).size(), size_t{kSteps});
}

// 23 records in a step; the header, metadata, names and texts have 7.
TEST(SpoolRecorderTest, KeepsTheNewestStepsWithinTheBudget) {
  const TestDirectory directory;
  SpoolOptions options = options_in(directory.path());
  options.budget = 64 * 150;
  options.keep_newest = true;
  std::vector<std::string> said;
  uint32_t seq = 0;
  {
    SpoolRecorder recorder(options);
    recorder.set_warning_listener([&said](const std::string& text) { said.push_back(text); });
    recorder.units(unit_names());
    for (int64_t step = 0; step < 100; ++step) {
      record_step(recorder, step, seq);
      recorder.flush();
      ASSERT_LE(std::filesystem::file_size(recorder.path()), 64U * 150U) << "step " << step;
    }
    // The lock is also that of the file which replaced the first.
    EXPECT_THROW(SpoolRecorder second(options), RuntimeFault);
    recorder.finish();
    EXPECT_EQ(recorder.dropped(), 0);
    EXPECT_EQ(recorder.losses(), "");
  }
  const Spool spool = trace::read_spool(directory.path() / "rank1.spool");
  EXPECT_TRUE(spool.ended);
  EXPECT_EQ(spool.damaged, 0);
  EXPECT_EQ(spool.units, unit_names());
  const auto begins = of_type(spool, SpoolType::kStepBegin);
  ASSERT_GE(begins.size(), 2U);
  EXPECT_LE(begins.size(), 4U);
  for (size_t i = 0; i < begins.size(); ++i) {
    EXPECT_EQ(begins[begins.size() - 1 - i].step.step, static_cast<int64_t>(99 - i));
  }
  EXPECT_EQ(spool.records.size(), begins.size() * 23);  // whole steps, their texts known
  EXPECT_THAT(spool.notes, testing::ElementsAre(testing::HasSubstr(
                               "keeps the newest steps in 9.38 KiB; earlier recorded steps")));
  EXPECT_THAT(said, testing::ElementsAre(
                        testing::HasSubstr("from now on the oldest recorded steps are removed")));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 2)
      << "the spool and the page of what the rank does now";
}

void record_and_flush_steps(SpoolRecorder& recorder, int64_t steps) {
  uint32_t seq = 0;
  for (int64_t step = 0; step < steps; ++step) {
    record_step(recorder, step, seq);
    recorder.flush();
  }
}

TEST(SpoolRecorderTest, DropsNewStepsIfTheOldOnesCannotBeRemoved) {
  const TestDirectory directory;
  SpoolOptions options = options_in(directory.path());
  options.budget = 64 * 150;
  options.keep_newest = true;
  SpoolRecorder recorder(options);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::dup(STDERR_FILENO);
  ::close(next);
  const rlimit limit{static_cast<rlim_t>(next), before.rlim_max};  // no file can be opened
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  record_and_flush_steps(recorder, 20);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_GT(recorder.dropped(), 0);
  EXPECT_EQ(of_type(trace::read_spool(recorder.path()), SpoolType::kStepBegin)[0].step.step, 0);
}

// A step larger than the budget.
TEST(SpoolRecorderTest, DropsWhatASingleStepHasBeyondTheBudget) {
  const TestDirectory directory;
  SpoolOptions options = options_in(directory.path());
  options.budget = 64 * 20;
  options.keep_newest = true;
  SpoolRecorder recorder(options);
  record_and_flush_steps(recorder, 20);
  EXPECT_GT(recorder.dropped(), 0);
  EXPECT_LE(std::filesystem::file_size(recorder.path()), 64U * 20U);
  EXPECT_EQ(of_type(trace::read_spool(recorder.path()), SpoolType::kStepBegin).back().step.step,
            19);
}

TEST(SpoolRecorderTest, SaysWhileItRunsThatTheBudgetEnds) {
  const TestDirectory directory;
  SpoolOptions options = options_in(directory.path());
  // The header, 2 records of metadata, 2 of names; then 23 for each step.
  options.budget = 64 * 150;
  SpoolRecorder recorder(options);
  std::vector<std::string> said;
  recorder.set_warning_listener([&said](const std::string& text) { said.push_back(text); });
  uint32_t seq = 0;
  std::vector<size_t> after;
  for (int64_t step = 0; step < 9; ++step) {
    record_step(recorder, step, seq);
    after.push_back(said.size());
  }
  EXPECT_THAT(after, testing::ElementsAre(0, 0, 0, 0, 1, 1, 2, 2, 2));
  ASSERT_EQ(said.size(), 2U);
  EXPECT_THAT(said[0], testing::AllOf(testing::HasSubstr("of its budget of 9.38 KiB after step 4"),
                                      testing::HasSubstr("about 1 more steps")));
  EXPECT_THAT(said[1], testing::HasSubstr("is used up in step 6: from now on records are dropped"));
}

TEST(SpoolRecorderTest, SaysOnceThatTheDevicesRecordsWereLost) {
  const TestDirectory directory;
  SpoolRecorder recorder(options_in(directory.path()));
  std::vector<std::string> said;
  recorder.set_warning_listener([&said](const std::string& text) { said.push_back(text); });
  uint32_t seq = 0;
  record_step(recorder, 0, seq);
  recorder.device_dropped(7);
  record_step(recorder, 1, seq);
  recorder.device_dropped(9);
  record_step(recorder, 2, seq);
  EXPECT_THAT(said, testing::ElementsAre(
                        testing::StartsWith("7 records of the device were lost until step 1")));
}

TEST(SpoolRecorderTest, NamesTheFileItCannotMake) {
  SpoolOptions options = options_in("/nonexistent/directory");
  try {
    const SpoolRecorder recorder(options);
    FAIL() << "no error";
  } catch (const RuntimeFault& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("/nonexistent/directory/rank1"));
  }
}

TEST(SpoolRecorderTest, SurvivesADiskThatTakesNothing) {
  const TestDirectory directory;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{0, 0};
    bool refused = false;
    if (::setrlimit(RLIMIT_FSIZE, &limit) == 0) {
      try {
        const SpoolRecorder recorder(options_in(directory.path()));
      } catch (const RuntimeFault&) {
        refused = true;
      }
    }
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(SpoolRecorderTest, OtherFilesAreNotEmptied) {
  const TestDirectory directory;
  const std::filesystem::path spool = directory.path() / "rank1.spool";
  const std::filesystem::path theirs = directory.path() / "theirs";
  std::ofstream(theirs) << "SHLSPOOL and more";
  std::filesystem::create_symlink("theirs", spool);
  EXPECT_THROW(SpoolRecorder{options_in(directory.path())}, RuntimeFault);
  std::filesystem::remove(spool);
  std::ofstream(spool) << "notes of the user";
  EXPECT_THROW(SpoolRecorder{options_in(directory.path())}, RuntimeFault);
  EXPECT_EQ(std::filesystem::file_size(spool), 17U);
  EXPECT_EQ(std::filesystem::file_size(theirs), 17U);
  std::filesystem::rename(theirs, spool);  // an old spool
  { const SpoolRecorder recorder(options_in(directory.path())); }
  EXPECT_EQ(trace::read_spool(spool).damaged, 0);
}

TEST(SpoolRecorderTest, APageIsNotWrittenThroughALink) {
  const TestDirectory directory;
  std::ofstream(directory.path() / "theirs") << "text";
  std::filesystem::create_symlink("theirs", directory.path() / "rank1.now");
  { const SpoolRecorder recorder(options_in(directory.path())); }
  EXPECT_EQ(std::filesystem::file_size(directory.path() / "theirs"), 4U);
  EXPECT_TRUE(std::filesystem::is_regular_file(
      std::filesystem::symlink_status(directory.path() / "rank1.now")));
}

// A limit on the file's size simulates a disk that fills up during the run.
TEST(SpoolRecorderTest, EndsTheSpoolAtAWholeRecordWhenTheDiskFillsUp) {
  const TestDirectory directory;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{64 * 50 + 10, 64 * 50 + 10};
    bool said = false;
    {
      SpoolRecorder recorder(options_in(directory.path()));
      said = ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
      uint32_t seq = 0;
      for (int64_t step = 0; step < 10; ++step) {
        record_step(recorder, step, seq);
      }
      recorder.finish();
      said = said && !recorder.error().empty() && recorder.dropped() > 100;
    }
    ::_exit(said ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const Spool spool = trace::read_spool(directory.path() / "rank1.spool");
  EXPECT_EQ(spool.truncated, 0);
  EXPECT_EQ(spool.damaged, 0);
  EXPECT_FALSE(spool.ended);
  EXPECT_GE(of_type(spool, SpoolType::kStepEnd).size(), 1U);
}

TEST(SpoolRecorderTest, IgnoresARangeEndWithoutABegin) {
  const TestDirectory directory;
  SpoolRecorder recorder(options_in(directory.path()));
  recorder.step_begin(0);
  recorder.range_end();
  recorder.step_end();
  recorder.finish();
  EXPECT_EQ(of_type(trace::read_spool(recorder.path()), SpoolType::kRange).size(), 0U);
}

}  // namespace
}  // namespace shardlens::record
