#include "profiler/record/host/rank_now.h"

#include <csignal>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "profiler/record/host/now_page.h"
#include "tests/profiler/record/recorded_run.h"

namespace shardlens::record {
namespace {

using schedule::Op;
using schedule::Stream;

TEST(RankNowTest, TellsWhereAKilledProcessWas) {
  const TestDirectory directory;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    NowPage page(now_path(directory.path(), 0));
    page.units(unit_names());
    page.step(7, true);
    page.hook(Hook::kPreBackward, 2);
    page.action(212, action_of(Op::kAllGather, Stream::kAllGather, 1));
    page.completed(CollectiveKind::kAllGather, 1);
    page.action(213, action_of(Op::kAllGather, Stream::kAllGather, 2));
    page.action(214, action_of(Op::kRecord, Stream::kAllGather, 2, 1041));
    page.action(215, action_of(Op::kStreamWait, Stream::kCompute, 2, 1041));
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  const auto now = read_rank_now(now_path(directory.path(), 0));
  ASSERT_TRUE(now.has_value());
  EXPECT_FALSE(now->finished);
  EXPECT_FALSE(now->torn);
  EXPECT_EQ(now->step, 7);
  EXPECT_EQ(now->hook, Hook::kPreBackward);
  EXPECT_EQ(now->action, 215U);
  EXPECT_EQ(now->op, Op::kStreamWait);
  EXPECT_EQ(now->waits_for, Op::kAllGather);
  EXPECT_EQ(now->waits_for_unit, "model.layers.1");
  EXPECT_EQ(now->issued, 2);
  EXPECT_EQ(now->completed, 1);
  EXPECT_EQ(
      now->sentence(),
      "step 7, hook pre_backward (model.layers.1), action 215 stream_wait (model.layers.1) waiting "
      "for all_gather "
      "(model.layers.1); 1 of 2 collectives complete, the last was all_gather (model.layers.0)");
}

TEST(RankNowTest, TellsBeforeTheFirstStepAndAfterTheEnd) {
  const TestDirectory directory;
  NowPage page(now_path(directory.path(), 3));
  auto now = read_rank_now(now_path(directory.path(), 3));
  ASSERT_TRUE(now.has_value());
  EXPECT_EQ(now->sentence(), "before the first step");
  page.step(0, true);
  page.step(0, false);
  page.finish();
  now = read_rank_now(now_path(directory.path(), 3));
  ASSERT_TRUE(now.has_value());
  EXPECT_TRUE(now->finished);
  EXPECT_EQ(now->sentence(), "after step 0");
}

TEST(RankNowTest, NamesUnitsByNumberWhereTheirNamesDoNotFit) {
  const TestDirectory directory;
  NowPage page(now_path(directory.path(), 0));
  page.units(std::vector<std::string>(2000, std::string(100, 'x')));
  page.step(1, true);
  page.hook(Hook::kPreForward, 1999);
  const auto now = read_rank_now(now_path(directory.path(), 0));
  ASSERT_TRUE(now.has_value());
  EXPECT_EQ(now->hook_unit, "unit 1999");
}

TEST(RankNowTest, ForgetsAnEventThatManyOthersFollowed) {
  const TestDirectory directory;
  NowPage page(now_path(directory.path(), 0));
  page.units(unit_names());
  page.step(0, true);
  page.action(1, action_of(Op::kAllGather, Stream::kAllGather, 1));
  for (uint32_t event = 0; event < 2000; ++event) {
    page.action(event + 2, action_of(Op::kRecord, Stream::kAllGather, 1, event));
  }
  page.action(3000, action_of(Op::kStreamWait, Stream::kCompute, 1, 3));
  const auto now = read_rank_now(now_path(directory.path(), 0));
  ASSERT_TRUE(now.has_value());
  EXPECT_FALSE(now->waits_for.has_value());
}

TEST(RankNowTest, IsNothingWhereThereIsNoPage) {
  const TestDirectory directory;
  EXPECT_FALSE(read_rank_now(directory.path() / "rank0.now").has_value());
  std::ofstream(directory.path() / "rank0.now") << std::string(64 * 1024, 'x');
  EXPECT_FALSE(read_rank_now(directory.path() / "rank0.now").has_value());
  std::ofstream(directory.path() / "rank0.now") << "short";
  EXPECT_FALSE(read_rank_now(directory.path() / "rank0.now").has_value());
}

}  // namespace
}  // namespace shardlens::record
