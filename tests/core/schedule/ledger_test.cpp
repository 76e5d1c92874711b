// Each invariant, broken by hand in an otherwise valid action stream.
#include "core/schedule/ledger.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace shardlens::schedule {
namespace {

// One step of two units (root and a block) as FSDP2 issues it, two ranks, flat layout.
class LedgerTest : public ::testing::Test {
 protected:
  LedgerTest() {
    units_.resize(2);
    units_[0].name = "";
    units_[1].name = "layers.0";
    units_[1].parent = 0;
    options_.shard = 2;
    Schedule schedule = std::move(Schedule::make(units_, options_).value());
    const auto raise = [&](Hook hook, UnitId unit) {
      EXPECT_TRUE(schedule.on({.hook = hook, .unit = unit}, actions_).ok());
    };
    for (int step = 0; step < 2; ++step) {
      raise(Hook::kRootPreForward, 0);
      raise(Hook::kPreForward, 0);
      raise(Hook::kPreForward, 1);
      raise(Hook::kPostForward, 1);
      raise(Hook::kPostForward, 0);
      raise(Hook::kPreBackward, 0);
      raise(Hook::kPreBackward, 1);
      raise(Hook::kGradsReady, 1);
      raise(Hook::kGradsReady, 0);
      raise(Hook::kBackwardEnd, 0);
      raise(Hook::kOptimizerDone, 0);
    }
  }

  // First complaint about the stream; empty: none.
  std::string complaint(const ActionList& actions) const {
    Ledger ledger(units_, options_);
    for (const Action& action : actions) {
      if (const Result<void> kept = ledger.consume(action); !kept.ok()) {
        return kept.message();
      }
    }
    const Result<void> end = ledger.finish();
    return end.ok() ? "" : end.message();
  }

  // Index of the n-th action (from 0) of `op` for `unit`, of the given buffer kind if any.
  size_t find(Op op, UnitId unit, BufferKind kind = BufferKind::kNone, int n = 0) const {
    for (size_t i = 0; i < actions_.size(); ++i) {
      const Action& action = actions_[i];
      if (action.op == op && action.unit == unit &&
          (kind == BufferKind::kNone || action.buffer.kind == kind) && n-- == 0) {
        return i;
      }
    }
    ADD_FAILURE() << "no " << name_of(op) << " of unit " << unit;
    return 0;
  }

  std::string without(size_t index) const {
    ActionList actions = actions_;
    actions.erase(actions.begin() + static_cast<ptrdiff_t>(index));
    return complaint(actions);
  }
  std::string twice(size_t index) const {
    ActionList actions = actions_;
    actions.insert(actions.begin() + static_cast<ptrdiff_t>(index), actions[index]);
    return complaint(actions);
  }

  std::vector<UnitSpec> units_;
  ScheduleOptions options_;
  ActionList actions_;
};

TEST_F(LedgerTest, AcceptsAStep) {
  EXPECT_EQ(complaint(actions_), "");
}

TEST_F(LedgerTest, UseWithoutUnshardIsRefused) {
  EXPECT_NE(
      without(find(Op::kAlloc, 1, BufferKind::kUnsharded)).find("its buffer is not allocated"),
      std::string::npos);
  EXPECT_NE(without(find(Op::kAllGather, 1)).find("the unit is not unsharded"), std::string::npos);
}

TEST_F(LedgerTest, UseBeforeTheWaitIsRefused) {
  const size_t use = find(Op::kUseFull, 1);
  ASSERT_EQ(actions_[use - 1].op, Op::kStreamWait);
  const std::string message = without(use - 1);
  EXPECT_NE(message.find("compute has not waited for the all-gather"), std::string::npos)
      << message;
  EXPECT_NE(message.find("'layers.0'"), std::string::npos) << message;
}

TEST_F(LedgerTest, BuffersAreAllocatedAndFreedOnce) {
  EXPECT_NE(twice(find(Op::kAlloc, 1, BufferKind::kUnsharded)).find("allocated already"),
            std::string::npos);
  EXPECT_NE(twice(find(Op::kFree, 1, BufferKind::kUnsharded)).find("it is not allocated"),
            std::string::npos);
  EXPECT_NE(twice(find(Op::kFree, 1, BufferKind::kUnshardedGrad)).find("is current"),
            std::string::npos);
  ActionList actions = actions_;
  actions[find(Op::kAlloc, 1, BufferKind::kUnsharded)].buffer.generation = 7;
  EXPECT_NE(complaint(actions).find("generation 0 comes next"), std::string::npos);
}

TEST_F(LedgerTest, FreeWhileFullIsRefused) {
  EXPECT_NE(without(find(Op::kUseShard, 1)).find("the parameters are still full"),
            std::string::npos);
}

TEST_F(LedgerTest, FreeOfWhatACollectiveReadsIsRefused) {
  // The gradient is freed right after its reduce-scatter was issued, before anything waited for the
  // reduce-scatter.
  ActionList actions = actions_;
  const size_t free = find(Op::kFree, 1, BufferKind::kUnshardedGrad);
  const size_t scatter = find(Op::kReduceScatter, 1);
  ASSERT_LT(scatter, free);
  std::rotate(actions.begin() + static_cast<ptrdiff_t>(scatter) + 1,
              actions.begin() + static_cast<ptrdiff_t>(free),
              actions.begin() + static_cast<ptrdiff_t>(free) + 1);
  EXPECT_NE(complaint(actions).find("it has not waited for reduce_scatter"), std::string::npos)
      << complaint(actions);
}

TEST_F(LedgerTest, WaitForAnEventNeverRecordedIsRefused) {
  ActionList actions = actions_;
  actions[find(Op::kStreamWait, 1)].event = 4000;
  EXPECT_NE(complaint(actions).find("the event was never recorded"), std::string::npos);
}

TEST_F(LedgerTest, AnEndThatIsNotShardedIsRefused) {
  ActionList actions = actions_;
  while (actions.back().op != Op::kUseShard) {
    actions.pop_back();
  }
  actions.pop_back();
  EXPECT_NE(complaint(actions).find("is still unsharded at the end"), std::string::npos)
      << complaint(actions);
}

TEST_F(LedgerTest, FreesBeyondTheLimitAreRefused) {
  units_.resize(6);
  for (UnitId id = 1; id < units_.size(); ++id) {
    units_[id].name = "layers." + std::to_string(id);
    units_[id].parent = 0;
    units_[id].reshard_after_forward.kind = plan::Reshard::Kind::kYes;
  }
  Schedule schedule = std::move(Schedule::make(units_, options_).value());
  ActionList actions;
  EXPECT_TRUE(schedule.on({.hook = Hook::kRootPreForward, .unit = 0}, actions).ok());
  EXPECT_TRUE(schedule.on({.hook = Hook::kPreForward, .unit = 0}, actions).ok());
  for (UnitId id = 1; id < units_.size(); ++id) {
    EXPECT_TRUE(schedule.on({.hook = Hook::kPreForward, .unit = id}, actions).ok());
    EXPECT_TRUE(schedule.on({.hook = Hook::kPostForward, .unit = id}, actions).ok());
  }
  EXPECT_TRUE(schedule.on({.hook = Hook::kAbort, .unit = 0}, actions).ok());
  EXPECT_EQ(complaint(actions), "");
  std::erase_if(actions, [](const Action& action) { return action.cause == Cause::kLimiter; });
  EXPECT_NE(complaint(actions).find("frees are pending, the limit is 2"), std::string::npos)
      << complaint(actions);
}

TEST_F(LedgerTest, DamagedActionsAreRefusedNotFollowed) {
  Ledger ledger(units_, options_);
  const BufferId none{};
  EXPECT_FALSE(ledger.consume({.op = Op::kAlloc, .unit = 9, .buffer = none}).ok());
  EXPECT_FALSE(ledger.consume({.op = Op::kAlloc, .unit = 1, .buffer = none}).ok());
  EXPECT_FALSE(
      ledger.consume({.op = Op::kFree, .unit = 1, .buffer = {BufferKind::kUnsharded, 77, 0}}).ok());
  EXPECT_FALSE(
      ledger.consume({.op = Op::kRecord, .unit = 1, .buffer = none, .event = 0xfffffff0U}).ok());
  EXPECT_FALSE(
      ledger.consume({.op = Op::kStreamWait, .unit = 1, .buffer = none, .event = kNoEvent}).ok());
  EXPECT_FALSE(
      ledger
          .consume(
              {.op = Op::kReduceScatter, .unit = 1, .buffer = {BufferKind::kReduceOutput, 1, 0}})
          .ok());
}

// A dropped action of any kind that matters is noticed (records and waits that another one repeats
// are not).
TEST_F(LedgerTest, MostDroppedActionsAreNoticed) {
  size_t noticed = 0;
  for (size_t i = 0; i < actions_.size(); ++i) {
    const bool caught = !without(i).empty();
    noticed += caught ? 1 : 0;
    const Op op = actions_[i].op;
    if (op == Op::kAlloc || op == Op::kFree || op == Op::kAllGather || op == Op::kUseShard) {
      // A missing free of a gradient is noticed only by the generation of the next gradient.
      const bool last_grad = actions_[i].buffer.kind == BufferKind::kUnshardedGrad &&
                             actions_[i].buffer.generation == 1;
      EXPECT_TRUE(caught || last_grad) << i << " " << name_of(op);
    }
  }
  EXPECT_GT(noticed * 2, actions_.size());
}

}  // namespace
}  // namespace shardlens::schedule
