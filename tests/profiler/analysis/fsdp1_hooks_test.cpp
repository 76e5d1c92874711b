// What FSDP1's hooks do, in built traces: its ranges have no unit names.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiler/analysis/fsdp_log/fsdp_log.h"
#include "profiler/analysis/fsdp_log/recorded_names.h"
#include "profiler/analysis/recover/recovered_plan.h"
#include "tests/profiler/analysis/trace_builder.h"

namespace shardlens::analysis {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Fsdp1Program : public test::TraceBuilder {
 public:
  void gather(Nanoseconds start) { op("c10d::_allgather_base_", start, start + 5); }
};

// The head is a unit at the model's end, so in backward its hook runs first, then the root's, which
// gathers nothing: it kept its parameters. The head's prefetch is for the block.
TEST(Fsdp1HooksTest, AHookThatGathersNothingDoesNotTakeThePrefetch) {
  Fsdp1Program b;
  b.step(1, 0, 1000);
  b.fsdp1("forward", 10, 400);
  b.fsdp1("_to_kwargs", 11, 12);
  b.fsdp1("_pre_forward", 20, 40);
  b.gather(21);
  for (const Nanoseconds start : {100, 200}) {  // the block and the head
    b.fsdp1("forward", start, start + 80);
    b.fsdp1("_pre_forward", start + 1, start + 20);
    b.gather(start + 2);
    b.fsdp1("_post_forward", start + 70, start + 75);
  }
  b.fsdp1("_post_forward", 380, 390);
  b.fsdp1("_pre_backward_hook", 500, 550);  // the head's
  b.gather(501);
  b.fsdp1("_pre_backward_prefetch", 520, 540);
  b.gather(521);
  b.fsdp1("_pre_backward_hook", 560, 570);  // the root's
  b.fsdp1("_pre_backward_hook", 600, 620);  // the block's
  const trace::Trace trace = b.finish();
  FsdpLog log;
  read_fsdp1(trace, log);
  std::vector<std::string> gathers;
  for (const FsdpEvent& event : log.events) {
    if (event.call == FsdpCall::kUnshard) {
      const std::string_view again = event.backward ? " again" : "";
      gathers.push_back(log.units[event.unit].fqn + std::string(again));
    }
  }
  EXPECT_THAT(gathers, ElementsAre("", "unit 1", "unit 2", "unit 2 again", "unit 1 again"));
  ASSERT_EQ(log.prefetches.size(), 1U);
  EXPECT_EQ(log.units[log.prefetches[0].target].fqn, "unit 1");
}

// Views of the flat parameter that a hook makes are numbered like a forward's operators.
TEST(Fsdp1HooksTest, ViewsThatAHookMakesAreNoForwardThatRunsAgain) {
  const auto checkpointed = [](bool again) {
    Fsdp1Program b;
    b.step(1, 0, 1000);
    b.fsdp1("forward", 10, 400);
    b.fsdp1("_to_kwargs", 11, 12);
    b.fsdp1("_pre_forward", 20, 40);
    b.fsdp1("forward", 100, 300);
    b.fsdp1("_pre_forward", 101, 120);
    b.numbered("aten::mm", 150, 155, 1);
    b.numbered("aten::mm", 160, 165, 2);
    b.fsdp1("_post_forward", 290, 295);
    b.fsdp1("_post_forward", 380, 390);
    b.fsdp1("_pre_backward_hook", 500, 510);  // the root's
    b.fsdp1("_pre_backward_hook", 520, 600);  // the unit's
    for (int i = 0; i < 5; ++i) {
      b.numbered("aten::view", 530 + 10 * i, 535 + 10 * i, 3 + i);
    }
    if (again) {
      b.numbered("aten::mm", 610, 615, 8);
      b.numbered("aten::mm", 620, 625, 9);
    }
    b.fsdp1("_post_backward_hook", 700, 750);
    b.op("c10d::allreduce_", 710, 740);
    b.numbered("aten::view", 745, 750, 10);
    b.fsdp1("_post_backward_hook", 800, 850);  // the root's
    b.op("c10d::allreduce_", 810, 840);
    return recover_plan(b.finish()).plan.activation_checkpointing;
  };
  EXPECT_THAT(checkpointed(false), IsEmpty());
  EXPECT_THAT(checkpointed(true), ElementsAre("unit 1"));
}

// A unit has two checkpointed modules of three operators, of which a checkpoint repeats two: it
// stops after what saves. The second module runs again first.
TEST(Fsdp1HooksTest, OperatorsThatRunAgainAreThoseOfTheirOwnCheckpoint) {
  Fsdp1Program b;
  int number = 0;
  const auto run = [&](Nanoseconds start, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      b.numbered(name, start, start + 5, ++number);
      start += 10;
    }
  };
  b.step(1, 0, 1000);
  b.fsdp1("forward", 10, 400);
  b.fsdp1("_to_kwargs", 11, 12);
  b.fsdp1("_pre_forward", 20, 40);
  b.fsdp1("forward", 100, 300);
  b.fsdp1("_pre_forward", 101, 120);
  run(130, {"aten::mm", "aten::gelu", "aten::mm"});
  run(160, {"aten::mm", "aten::gelu", "aten::mm"});
  b.fsdp1("_post_forward", 290, 295);
  b.fsdp1("_post_forward", 380, 390);
  b.fsdp1("_pre_backward_hook", 500, 510);  // the root's
  b.fsdp1("_pre_backward_hook", 520, 530);  // the unit's
  for (const Nanoseconds start : {540, 600}) {
    run(start, {"aten::mm", "aten::gelu"});
    b.op("aten::gelu_backward", start + 30, start + 35);
  }
  b.fsdp1("_post_backward_hook", 700, 750);
  b.op("c10d::allreduce_", 710, 740);
  b.fsdp1("_post_backward_hook", 800, 850);  // the root's
  b.op("c10d::allreduce_", 810, 840);
  std::vector<int32_t> repeated;
  for (const plan::Operator& op : recover_plan(b.finish()).recorded.workload.operators) {
    if (op.phase == plan::Phase::kRecompute) {
      repeated.push_back(op.forward);
    }
  }
  EXPECT_THAT(repeated, ElementsAre(3, 4, 0, 1));
}

// Under NO_SHARD nothing is gathered: a unit's name is that of its recorded reductions, most of
// which count if one call is within another unit's.
TEST(Fsdp1HooksTest, UnitsThatGatherNothingHaveTheNamesOfTheirReductions) {
  Fsdp1Program b;
  const auto reduce = [&](std::string_view unit, Nanoseconds start) {
    b.fsdp1("_post_backward_hook", start, start + 50);
    b.op("c10d::allreduce_", start + 10, start + 30);
    b.trace.recorded_actions.push_back({0, schedule::Op::kAllReduce, schedule::Cause::kOwn,
                                        std::string(unit), 1, start + 5, start + 40});
  };
  for (const Nanoseconds step : {0, 1000, 2000}) {
    b.step(step / 1000 + 1, step, step + 1000);
    b.fsdp1("forward", step + 10, step + 400);
    b.fsdp1("_to_kwargs", step + 11, step + 12);
    b.fsdp1("_pre_forward", step + 20, step + 40);
    b.fsdp1("forward", step + 100, step + 300);
    b.fsdp1("_pre_forward", step + 101, step + 120);
    b.fsdp1("_post_forward", step + 290, step + 295);
    b.fsdp1("_post_forward", step + 380, step + 390);
    b.fsdp1("_pre_backward_hook", step + 500, step + 510);
    b.fsdp1("_pre_backward_hook", step + 520, step + 600);
    reduce(step == 1000 ? "elsewhere" : "layers.0", step + 700);
    reduce("", step + 800);
  }
  const trace::Trace trace = b.finish();
  FsdpLog log;
  read_fsdp1(trace, log);
  ASSERT_FALSE(log.names_units);
  name_units(trace, log);
  EXPECT_TRUE(log.names_units);
  ASSERT_EQ(log.units.size(), 2U);
  EXPECT_EQ(log.units[0].fqn, "");
  EXPECT_EQ(log.units[1].fqn, "layers.0");
}

}  // namespace
}  // namespace shardlens::analysis
