// Hooks in the wrong order, settings, options, and the actions of a step.
#include "core/schedule/schedule.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/schedule/ledger.h"

namespace shardlens::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<UnitSpec> blocks(uint32_t count) {
  std::vector<UnitSpec> units(count + 1);
  units[0].name = "";
  for (UnitId id = 1; id <= count; ++id) {
    units[id].name = "layers." + std::to_string(id - 1);
    units[id].parent = 0;
  }
  return units;
}

ScheduleOptions two_ranks() {
  ScheduleOptions options;
  options.shard = 2;
  return options;
}

// "alloc unsharded", "record all_gather", "stream_wait compute", …
std::vector<std::string> words(const ActionList& actions) {
  std::vector<std::string> out;
  for (const Action& action : actions) {
    std::string word(name_of(action.op));
    if (action.event != kNoEvent) {
      word += " " + std::string(name_of(action.stream));
    } else if (action.buffer.kind != BufferKind::kNone) {
      word += " " + std::string(name_of(action.buffer.kind));
    }
    out.push_back(word);
  }
  return out;
}

class Driver {
 public:
  Driver(std::vector<UnitSpec> units, const ScheduleOptions& options)
      : schedule_(std::move(Schedule::make(units, options).value())) {}

  ActionList operator()(Hook hook, UnitId unit, Grads grads = Grads::kAll) {
    ActionList actions;
    const Result<void> done = schedule_.on({.hook = hook, .unit = unit, .grads = grads}, actions);
    EXPECT_TRUE(done.ok()) << done.message();
    return actions;
  }
  std::string refusal(const HookEvent& event) {
    ActionList actions;
    const Result<void> done = schedule_.on(event, actions);
    EXPECT_TRUE(actions.empty());
    return done.ok() ? "" : done.message();
  }
  void forward(uint32_t units) {
    (*this)(Hook::kRootPreForward, 0);
    (*this)(Hook::kPreForward, 0);
    for (UnitId id = 1; id < units; ++id) {
      (*this)(Hook::kPreForward, id);
      (*this)(Hook::kPostForward, id);
    }
    (*this)(Hook::kPostForward, 0);
  }
  Schedule& schedule() { return schedule_; }

 private:
  Schedule schedule_;
};

// [Note: Contract] The executor of core/fsdp relies on these sequences.
TEST(ScheduleTest, FlatUnitWithoutCast) {
  Driver on(blocks(2), two_ranks());
  EXPECT_THAT(words(on(Hook::kRootPreForward, 0)),
              ElementsAre("record compute", "stream_wait all_gather"));
  on(Hook::kPreForward, 0);
  EXPECT_THAT(words(on(Hook::kPreForward, 1)),
              ElementsAre("alloc unsharded", "all_gather unsharded", "record all_gather",
                          "stream_wait compute", "use_full"));
  EXPECT_THAT(words(on(Hook::kPostForward, 1)),
              ElementsAre("use_shard", "free unsharded", "record compute"));
  on(Hook::kPreForward, 2);
  on(Hook::kPostForward, 2);
  EXPECT_THAT(words(on(Hook::kPostForward, 0)), ElementsAre());
  on(Hook::kPreBackward, 0);
  on(Hook::kPreBackward, 2);
  EXPECT_THAT(words(on(Hook::kGradsReady, 2)),
              ElementsAre("use_shard", "free unsharded", "record compute", "record compute",
                          "stream_wait reduce_scatter", "alloc reduce_output",
                          "reduce_scatter reduce_output", "store_grad reduce_output",
                          "record reduce_scatter"));
  on(Hook::kPreBackward, 1);
  EXPECT_THAT(words(on(Hook::kGradsReady, 1)),
              ElementsAre("use_shard", "free unsharded", "record compute", "stream_wait compute",
                          "free unsharded_grad", "free reduce_output", "record compute",
                          "stream_wait reduce_scatter", "alloc reduce_output",
                          "reduce_scatter reduce_output", "store_grad reduce_output",
                          "record reduce_scatter"));
  on(Hook::kGradsReady, 0);
  EXPECT_THAT(words(on(Hook::kBackwardEnd, 0)),
              ElementsAre("stream_wait compute", "free unsharded_grad", "free reduce_output"));
  EXPECT_THAT(words(on(Hook::kOptimizerDone, 0)), ElementsAre("record compute"));
  EXPECT_THAT(words(on(Hook::kRootPreForward, 0)), ElementsAre("stream_wait all_gather"));
}

TEST(ScheduleTest, FlatUnitWithCasts) {
  std::vector<UnitSpec> units = blocks(1);
  for (UnitSpec& unit : units) {
    unit.copy_in = unit.reduce_cast = unit.reduce_copy_in = true;
  }
  Driver on(units, two_ranks());
  on(Hook::kRootPreForward, 0);
  EXPECT_THAT(words(on(Hook::kPreForward, 0)),
              ElementsAre("alloc unsharded", "copy_in unsharded", "record copy_in",
                          "stream_wait all_gather", "all_gather unsharded", "record all_gather",
                          "stream_wait compute", "use_full"));
  on(Hook::kPreForward, 1);
  on(Hook::kPostForward, 1);
  on(Hook::kPostForward, 0);
  on(Hook::kPreBackward, 0);
  on(Hook::kPreBackward, 1);
  EXPECT_THAT(words(on(Hook::kGradsReady, 1)),
              ElementsAre("use_shard", "free unsharded", "record compute", "alloc reduce_input",
                          "reduce_copy_in reduce_input", "free unsharded_grad", "record compute",
                          "stream_wait reduce_scatter", "alloc reduce_output",
                          "reduce_scatter reduce_output", "store_grad reduce_output",
                          "record reduce_scatter"));
}

TEST(ScheduleTest, NoShardAllReducesTheGradientItself) {
  ScheduleOptions options;
  options.replicate = 2;
  Driver on(blocks(1), options);
  on(Hook::kRootPreForward, 0);
  EXPECT_THAT(words(on(Hook::kPreForward, 0)), ElementsAre("use_full"));
  EXPECT_THAT(words(on(Hook::kPreForward, 1)), ElementsAre("use_full"));
  EXPECT_THAT(words(on(Hook::kPostForward, 1)), ElementsAre());
  on(Hook::kPostForward, 0);
  EXPECT_THAT(words(on(Hook::kPreBackward, 0)), ElementsAre());
  EXPECT_THAT(words(on(Hook::kPreBackward, 1)), ElementsAre());
  EXPECT_THAT(
      words(on(Hook::kGradsReady, 1)),
      ElementsAre("use_shard", "record compute", "stream_wait all_reduce",
                  "all_reduce unsharded_grad", "store_grad unsharded_grad", "record all_reduce"));
  EXPECT_THAT(words(on(Hook::kBackwardEnd, 0)),
              ElementsAre("use_shard", "stream_wait compute", "free unsharded_grad"));
}

TEST(ScheduleTest, OneRankCommunicatesOnlyWhenForced) {
  for (const bool forced : {false, true}) {
    ScheduleOptions options;
    options.force_collectives = forced;
    Driver on(blocks(1), options);
    on.forward(2);
    on(Hook::kPreBackward, 0);
    on(Hook::kPreBackward, 1);
    const std::vector<std::string> reduced = words(on(Hook::kGradsReady, 1));
    if (forced) {
      EXPECT_THAT(reduced, ::testing::Contains("reduce_scatter reduce_output"));
    } else {
      EXPECT_THAT(reduced,
                  ElementsAre("use_shard", "store_grad unsharded_grad", "free unsharded_grad"));
    }
  }
}

// As torch 2.11's FSDPParamGroup.wait_for_unshard() and foreach_reduce(): copies, no collectives.
// The experts' mesh may have one rank where that of the rest has several.
TEST(ScheduleTest, AGroupOfOneRankCopiesWhereOthersCommunicate) {
  std::vector<UnitSpec> units = blocks(2);
  for (UnitSpec& unit : units) {
    unit.copy_in = unit.copy_out = unit.reduce_copy_in = true;
  }
  units[1].one_rank = true;
  Ledger ledger(units, two_ranks());
  Driver on(units, two_ranks());
  const auto played = [&](Hook hook, UnitId unit) {
    const ActionList actions = on(hook, unit);
    for (const Action& action : actions) {
      const Result<void> legal = ledger.consume(action);
      EXPECT_TRUE(legal.ok()) << legal.message();
    }
    return words(actions);
  };
  played(Hook::kRootPreForward, 0);
  played(Hook::kPreForward, 0);
  EXPECT_THAT(played(Hook::kPreForward, 1),
              ElementsAre("stream_wait copy_in", "stream_wait all_gather", "free gathered",
                          "alloc unsharded", "copy_in unsharded", "use_full"));
  EXPECT_THAT(played(Hook::kPostForward, 1), ElementsAre("use_shard", "free unsharded"));
  played(Hook::kPreForward, 2);
  played(Hook::kPostForward, 2);
  played(Hook::kPostForward, 0);
  played(Hook::kPreBackward, 0);
  // The root gathered it ahead. Its own prefetch of the unit before it gathers nothing.
  EXPECT_THAT(
      played(Hook::kPreBackward, 2),
      ElementsAre("stream_wait compute", "alloc unsharded", "copy_out unsharded", "record compute",
                  "stream_wait copy_in", "stream_wait all_gather", "free gathered", "use_full"));
  played(Hook::kGradsReady, 2);
  EXPECT_THAT(played(Hook::kPreBackward, 1),
              ElementsAre("alloc unsharded", "copy_in unsharded", "use_full"));
  EXPECT_THAT(played(Hook::kGradsReady, 1),
              ElementsAre("use_shard", "free unsharded", "stream_wait compute", "free reduce_input",
                          "free reduce_output", "alloc reduce_input", "reduce_copy_in reduce_input",
                          "free unsharded_grad", "record compute", "stream_wait reduce_scatter",
                          "alloc reduce_output", "reduce_copy_in reduce_output",
                          "store_grad reduce_output", "record reduce_scatter"));
  played(Hook::kGradsReady, 0);
  played(Hook::kBackwardEnd, 0);
  EXPECT_TRUE(ledger.finish().ok()) << ledger.finish().message();
}

TEST(ScheduleTest, HybridReducesOverBothAxes) {
  ScheduleOptions options = two_ranks();
  options.replicate = 2;
  Driver on(blocks(1), options);
  on.forward(2);
  on(Hook::kPreBackward, 0);
  on(Hook::kPreBackward, 1);
  const ActionList actions = on(Hook::kGradsReady, 1);
  std::vector<mesh::GroupId> groups;
  for (const Action& action : actions) {
    if (action.group != mesh::kNoGroup) {
      groups.push_back(action.group);
    }
  }
  EXPECT_THAT(groups, ElementsAre(plan::kShardGroup, plan::kReplicateGroup));
  EXPECT_THAT(words(on(Hook::kBackwardEnd, 0)),
              ElementsAre("use_shard", "free unsharded", "record compute", "stream_wait compute",
                          "free reduce_output", "stream_wait compute", "free unsharded_grad"));
}

TEST(ScheduleTest, OffloadedUnitsCopyFromAndToTheHost) {
  ScheduleOptions options = two_ranks();
  options.cpu_offload = true;
  Driver on(blocks(1), options);
  on(Hook::kRootPreForward, 0);
  EXPECT_THAT(words(on(Hook::kPreForward, 0)),
              ElementsAre("alloc unsharded", "to_device unsharded", "record copy_in",
                          "stream_wait all_gather", "all_gather unsharded", "record all_gather",
                          "stream_wait compute", "use_full"));
  on(Hook::kPreForward, 1);
  on(Hook::kPostForward, 1);
  on(Hook::kPostForward, 0);
  on(Hook::kPreBackward, 0);
  on(Hook::kPreBackward, 1);
  EXPECT_THAT(words(on(Hook::kGradsReady, 1)), ::testing::Contains("to_host reduce_output"));
  // The optimizer runs on the host, so the host waits at the end of backward.
  EXPECT_THAT(words(on(Hook::kBackwardEnd, 0)), ::testing::Contains("host_wait compute"));
}

// The optimizer runs on the stream that has stored the gradient, before the event that the next
// reduction and the end of backward wait for.
TEST(ScheduleTest, OptimizerInBackwardFollowsTheStoredGradient) {
  for (const plan::Dialect dialect : {plan::Dialect::kFsdp2, plan::Dialect::kFsdp1}) {
    ScheduleOptions options = two_ranks();
    options.dialect = dialect;
    std::vector<UnitSpec> units = blocks(2);
    units[2].optimizer_in_backward = true;
    Driver on(units, options);
    for (int step = 0; step < 2; ++step) {
      on.forward(3);
      on(Hook::kPreBackward, 0);
      on(Hook::kPreBackward, 2);
      const ActionList actions = on(Hook::kGradsReady, 2);
      const auto at = std::ranges::find(actions, Op::kStep, &Action::op);
      ASSERT_NE(at, actions.end());
      EXPECT_EQ(at->stream, Stream::kReduceScatter);
      EXPECT_EQ((at - 1)->op, Op::kStoreGrad);
      EXPECT_EQ((at - 1)->stream, at->stream);
      EXPECT_EQ((at - 1)->buffer, at->buffer);
      EXPECT_EQ(actions.back().op, Op::kRecord);
      EXPECT_EQ(actions.back().stream, at->stream);
      on(Hook::kPreBackward, 1);
      EXPECT_THAT(words(on(Hook::kGradsReady, 1)),
                  ::testing::Not(::testing::Contains("optimizer_step reduce_output")));
      on(Hook::kBackwardEnd, 0);
      on(Hook::kOptimizerDone, 0);
    }
  }
}

// A prefetch does not read a shard that the optimizer is writing, until the next forward.
TEST(ScheduleTest, NothingPrefetchesAUnitAfterItsStep) {
  std::vector<UnitSpec> units = blocks(2);
  units[2].optimizer_in_backward = true;
  units[1].backward_prefetch = std::vector<UnitId>{2};
  Driver on(units, two_ranks());
  for (int step = 0; step < 2; ++step) {
    on.forward(3);
    on(Hook::kPreBackward, 0);
    on(Hook::kPreBackward, 2);
    on(Hook::kGradsReady, 2);
    for (const Action& action : on(Hook::kPreBackward, 1)) {
      EXPECT_FALSE(action.op == Op::kAllGather && action.unit == 2) << "step " << step;
    }
    on(Hook::kGradsReady, 1);
    on(Hook::kBackwardEnd, 0);
  }
}

TEST(ScheduleTest, AccumulationWithoutSyncOnlyReshards) {
  Driver on(blocks(1), two_ranks());
  Setting sync;
  sync.flag = false;
  ASSERT_TRUE(on.schedule().set(0, sync, Recurse::kYes).ok());
  on.forward(2);
  on(Hook::kPreBackward, 0);
  on(Hook::kPreBackward, 1);
  EXPECT_THAT(words(on(Hook::kGradsReady, 1)),
              ElementsAre("use_shard", "free unsharded", "record compute"));
  on(Hook::kBackwardEnd, 0);
  // The waiting gradient is reduced by the next backward with sync, even if that backward has no
  // gradients of its own.
  sync.flag = true;
  ASSERT_TRUE(on.schedule().set(0, sync, Recurse::kYes).ok());
  on.forward(2);
  on(Hook::kPreBackward, 0);
  on(Hook::kPreBackward, 1);
  EXPECT_THAT(words(on(Hook::kGradsReady, 1, Grads::kNone)),
              ::testing::Contains("reduce_scatter reduce_output"));
}

TEST(ScheduleTest, UnitWithoutGradientsIsReshardedOnly) {
  Driver on(blocks(1), two_ranks());
  on.forward(2);
  on(Hook::kPreBackward, 0);
  on(Hook::kPreBackward, 1);
  EXPECT_THAT(words(on(Hook::kGradsReady, 1, Grads::kNone)),
              ElementsAre("use_shard", "free unsharded", "record compute"));
}

TEST(ScheduleTest, CausesSayWhoAskedForAnAllGather) {
  Driver on(blocks(3), two_ranks());
  on.forward(4);
  const ActionList root = on(Hook::kPreBackward, 0);
  ASSERT_GE(root.size(), 2U);
  EXPECT_EQ(root[1].unit, 3U);  // the alloc; root[0] is the limiter's wait
  EXPECT_EQ(root[0].cause, Cause::kLimiter);
  EXPECT_EQ(root[1].cause, Cause::kBackwardPrefetch);
  on(Hook::kAbort, 0);
  EXPECT_EQ(on(Hook::kUnshard, 2).back().cause, Cause::kUser);

  ScheduleOptions ahead = two_ranks();
  ahead.forward_prefetch = 1;
  Driver prefetching(blocks(2), ahead);
  prefetching(Hook::kRootPreForward, 0);
  const ActionList first = prefetching(Hook::kPreForward, 0);
  EXPECT_EQ(first.back().cause, Cause::kExplicitPrefetch);
  EXPECT_EQ(first.back().unit, 1U);
  EXPECT_EQ(prefetching.schedule().state(1), UnitState::kUnsharding);
}

TEST(ScheduleTest, WrongSequencesNameUnitStateAndHook) {
  Driver on(blocks(2), two_ranks());
  EXPECT_THAT(on.refusal({.hook = Hook::kPreForward, .unit = 1}),
              ::testing::AllOf(HasSubstr("pre_forward of unit 'layers.0'"),
                               HasSubstr("idle, sharded"), HasSubstr("no root_pre_forward")));
  EXPECT_THAT(on.refusal({.hook = Hook::kPostForward, .unit = 1}),
              HasSubstr("no pre_forward came before"));
  EXPECT_THAT(on.refusal({.hook = Hook::kPreBackward, .unit = 1}),
              HasSubstr("it has not run forward"));
  EXPECT_THAT(on.refusal({.hook = Hook::kBackwardEnd, .unit = 0}),
              HasSubstr("no backward is running"));
  EXPECT_THAT(on.refusal({.hook = Hook::kGradsReady, .unit = 1}),
              HasSubstr("no backward is running"));
  EXPECT_THAT(on.refusal({.hook = Hook::kPreForward, .unit = 7}),
              HasSubstr("units are numbered 0 to 2"));
  EXPECT_THAT(on.refusal({.hook = Hook::kPreForward, .unit = 1, .recompute = true}),
              HasSubstr("a recomputation happens inside backward"));
  on(Hook::kRootPreForward, 0);
  on(Hook::kPreForward, 0);
  EXPECT_THAT(on.refusal({.hook = Hook::kRootPreForward, .unit = 0}), HasSubstr("already running"));
  EXPECT_THAT(on.refusal({.hook = Hook::kPreForward, .unit = 0}),
              ::testing::AllOf(HasSubstr("in forward, unsharded"), HasSubstr("abort")));
  EXPECT_THAT(on.refusal({.hook = Hook::kReshard, .unit = 0}),
              HasSubstr("its parameters are in use"));
  EXPECT_THAT(on.refusal({.hook = Hook::kOptimizerDone, .unit = 0}), HasSubstr("is running"));
  EXPECT_THAT(on.refusal({.hook = Hook::kOptimizerDone, .unit = 2}),
              HasSubstr("it is not the root"));
  for (UnitId id : {1U, 2U}) {
    on(Hook::kPreForward, id);
    on(Hook::kPostForward, id);
  }
  on(Hook::kPostForward, 0);
  on(Hook::kPreBackward, 2);
  // Something other than unit 1's forward used its parameters.
  EXPECT_THAT(on.refusal({.hook = Hook::kGradsReady, .unit = 1}),
              HasSubstr("were its parameters used outside its forward?"));
  EXPECT_EQ(on.schedule().state(2), UnitState::kUnsharded);
  on(Hook::kAbort, 1);
  EXPECT_EQ(on.schedule().state(2), UnitState::kSharded);
}

TEST(ScheduleTest, ImpossibleOptionsAreRefusedByName) {
  const auto refusal = [](std::vector<UnitSpec> units, const ScheduleOptions& options) {
    const Result<Schedule> made = Schedule::make(units, options);
    return made.ok() ? std::string() : made.message();
  };
  ScheduleOptions options = two_ranks();
  EXPECT_THAT(refusal({}, options), HasSubstr("no units"));
  options.backward_prefetch = plan::BackwardPrefetch::kPost;
  EXPECT_THAT(refusal(blocks(1), options), HasSubstr("'post' exists only in fsdp1"));
  options = two_ranks();
  options.shard = 0;
  EXPECT_THAT(refusal(blocks(1), options), HasSubstr("mesh 1x0"));
  options = two_ranks();
  options.shard = 6;
  std::vector<UnitSpec> units = blocks(1);
  units[1].reshard_after_forward = {plan::Reshard::Kind::kSubMesh, 4};
  EXPECT_THAT(refusal(units, options),
              HasSubstr("'layers.0': reshard_after_forward = 4 should be a factor"));
  units[1].reshard_after_forward.ranks = 3;
  EXPECT_THAT(refusal(units, options),
              HasSubstr("'layers.0': reshard_after_forward = 3 needs a group"));
  units = blocks(2);
  units[1].forward_prefetch = {{9}};
  EXPECT_THAT(refusal(units, options), HasSubstr("a unit that does not exist"));
  units = blocks(2);
  units[1].parent = 2;
  EXPECT_THAT(refusal(units, options), HasSubstr("pre-order"));
  options.dialect = plan::Dialect::kFsdp1;
  options.forward_prefetch = 2;
  EXPECT_THAT(refusal(blocks(1), options), HasSubstr("fsdp1 takes 0 or 1"));
}

TEST(ScheduleTest, SettingsThatDoNotExistAreRefused) {
  ScheduleOptions options = two_ranks();
  options.dialect = plan::Dialect::kFsdp1;
  Driver fsdp1(blocks(1), options);
  Setting setting;
  setting.kind = Setting::Kind::kAllReduce;
  EXPECT_THAT(fsdp1.schedule().set(0, setting, Recurse::kYes).message(),
              HasSubstr("only in fsdp2"));
  setting.kind = Setting::Kind::kGradientSync;
  EXPECT_THAT(fsdp1.schedule().set(1, setting, Recurse::kNo).message(),
              HasSubstr("only on the root"));
  EXPECT_THAT(fsdp1.schedule().set(5, setting, Recurse::kNo).message(), HasSubstr("unit 5"));
  setting.kind = Setting::Kind::kForwardPrefetch;
  setting.units = {8};
  EXPECT_THAT(fsdp1.schedule().set(1, setting, Recurse::kNo).message(), HasSubstr("names unit 8"));
}

// Two stages of a pipeline on one set of streams: a reduction of the second stage releases buffers
// of the first, and one ledger accepts the actions of both.
TEST(ScheduleTest, RootsMayShareTheirStreams) {
  const auto comm = make_comm_state();
  const std::vector<UnitSpec> units = blocks(2);
  std::vector<UnitSpec> both = units;
  both.insert(both.end(), units.begin(), units.end());
  Schedule first = std::move(Schedule::make(units, two_ranks(), comm).value());
  Schedule second = std::move(Schedule::make(units, two_ranks(), comm).value());
  EXPECT_EQ(first.first_unit(), 0U);
  EXPECT_EQ(second.first_unit(), 3U);
  ActionList actions;
  const auto raise = [&](Schedule& root, Hook hook, UnitId unit) {
    const Result<void> done = root.on({.hook = hook, .unit = root.first_unit() + unit}, actions);
    ASSERT_TRUE(done.ok()) << done.message();
  };
  Setting last;
  last.kind = Setting::Kind::kLastBackward;
  for (int step = 0; step < 3; ++step) {
    for (Schedule* root : {&first, &second}) {
      raise(*root, Hook::kRootPreForward, 0);
      raise(*root, Hook::kPreForward, 0);
      for (UnitId unit : {1U, 2U}) {
        raise(*root, Hook::kPreForward, unit);
        raise(*root, Hook::kPostForward, unit);
      }
      raise(*root, Hook::kPostForward, 0);
    }
    for (Schedule* root : {&second, &first}) {
      // The second stage's backward leaves its last reduction to the first stage's.
      last.flag = root == &first;
      ASSERT_TRUE(root->set(root->first_unit(), last, Recurse::kNo).ok());
      raise(*root, Hook::kPreBackward, 0);
      for (UnitId unit : {2U, 1U}) {
        raise(*root, Hook::kPreBackward, unit);
        raise(*root, Hook::kGradsReady, unit);
      }
      raise(*root, Hook::kGradsReady, 0);
      raise(*root, Hook::kBackwardEnd, 0);
    }
  }
  Ledger ledger(both, two_ranks());
  for (const Action& action : actions) {
    const Result<void> kept = ledger.consume(action);
    ASSERT_TRUE(kept.ok()) << kept.message();
  }
  EXPECT_TRUE(ledger.finish().ok()) << ledger.finish().message();
}

TEST(ActionTest, NamesReadBackToTheirValues) {
  for (int i = 0; i < kOpCount; ++i) {
    EXPECT_EQ(parse_op(name_of(static_cast<Op>(i))), static_cast<Op>(i));
  }
  for (int i = 0; i < kStreamCount; ++i) {
    EXPECT_EQ(parse_stream(name_of(static_cast<Stream>(i))), static_cast<Stream>(i));
  }
  for (int i = 0; i < kCauseCount; ++i) {
    EXPECT_EQ(parse_cause(name_of(static_cast<Cause>(i))), static_cast<Cause>(i));
  }
  for (int i = 0; i < kBufferKindCount; ++i) {
    EXPECT_EQ(parse_buffer_kind(name_of(static_cast<BufferKind>(i))), static_cast<BufferKind>(i));
  }
  EXPECT_EQ(parse_op("gather"), std::nullopt);
  EXPECT_EQ(name_of(Op::kAllGather), "all_gather");
  EXPECT_EQ(name_of(Cause::kForwardPrefetch), "forward_prefetch");
}

}  // namespace
}  // namespace shardlens::schedule
