#include "profiler/trace/spool/spool_trace.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/profiler/record/recorded_run.h"

namespace shardlens::record {
namespace {

using trace::Category;
using trace::Event;
using trace::Trace;

Trace recorded(int64_t steps, bool finish = true) {
  const TestDirectory directory;
  SpoolRecorder recorder(options_in(directory.path()));
  recorder.units(unit_names());
  uint32_t seq = 0;
  for (int64_t step = 5; step < 5 + steps; ++step) {
    record_step(recorder, step, seq);
  }
  if (finish) {
    recorder.finish();
  } else {
    recorder.step_begin(5 + steps);
    recorder.hook({.hook = Hook::kPreForward, .unit = 2});
    recorder.flush();  // the open step is on disk too
  }
  return spool_to_trace(trace::read_spool(recorder.path()));
}

std::vector<Event> named(const Trace& trace, std::string_view name) {
  std::vector<Event> found;
  std::copy_if(trace.events.begin(), trace.events.end(), std::back_inserter(found),
               [&](const Event& event) { return trace.name(event) == name; });
  return found;
}

TEST(SpoolTraceTest, DescribesTheRankItsWorldAndItsGroups) {
  const Trace trace = recorded(1);
  EXPECT_EQ(trace.metadata.rank, 1);
  EXPECT_EQ(trace.metadata.world_size, 2);
  EXPECT_EQ(trace.metadata.backend, "gloo");
  ASSERT_EQ(trace.metadata.groups.size(), 1U);
  EXPECT_EQ(trace.metadata.groups[0].name, "shard");
  EXPECT_EQ(trace.metadata.groups[0].size, 2);
  EXPECT_EQ(trace.units, unit_names());
  EXPECT_THAT(trace.diagnostics, testing::IsEmpty());
  EXPECT_EQ(trace.processes.at(0).name, "rank 1");
}

// A fault may have damaged the list.
TEST(SpoolTraceTest, SaysThatTheListOfGroupsCannotBeRead) {
  const TestDirectory directory;
  SpoolRecorder recorder(options_in(directory.path()));
  recorder.finish();
  trace::Spool spool = trace::read_spool(recorder.path());
  for (const char* ranks : {"[1e308]", "[1.5]", "[18446744073709551615]", "\"0\"", "[[0]]"}) {
    spool.metadata = fmt::format(
        R"({{"backend": "gloo", "groups": [{{"name": "a", "description": "", "ranks": {}}}]}})",
        ranks);
    const Trace trace = spool_to_trace(spool);
    EXPECT_THAT(trace.metadata.groups, testing::IsEmpty()) << ranks;
    ASSERT_EQ(trace.diagnostics.size(), 1U) << ranks;
    EXPECT_THAT(trace.diagnostics[0].message,
                testing::HasSubstr("process groups does not have the expected form"));
  }
}

TEST(SpoolTraceTest, GivesEachStepItsProfilerStepAndRangesTheirUnit) {
  const Trace trace = recorded(2);
  ASSERT_EQ(named(trace, "ProfilerStep#5").size(), 1U);
  ASSERT_EQ(named(trace, "ProfilerStep#6").size(), 1U);
  const Event step = named(trace, "ProfilerStep#6")[0];
  const auto ranges = named(trace, "FSDP::pre_forward (model.layers.1)");
  ASSERT_EQ(ranges.size(), 2U);
  EXPECT_GE(ranges[1].start, step.start);
  EXPECT_LE(ranges[1].end(), step.end());
  EXPECT_EQ(ranges[1].track, step.track);
  EXPECT_EQ(named(trace, "FSDP::pre_forward").size(), 2U);
}

TEST(SpoolTraceTest, PutsCollectivesOnATrackOfTheirCommunicatorWithTheirArguments) {
  const Trace trace = recorded(1);
  const auto gathers = named(trace, "gloo:all_gather (model.layers.0)");
  ASSERT_EQ(gathers.size(), 1U);
  const Event& event = gathers[0];
  EXPECT_EQ(event.category, Category::kCommunication);
  EXPECT_EQ(event.duration, 3000);
  EXPECT_EQ(trace.strings.view(trace.tracks[event.track].name), "communicator shard");
  EXPECT_NE(event.track, named(trace, "ProfilerStep#5").at(0).track);
  const trace::CollectiveArgs* args = trace.collective(event);
  ASSERT_NE(args, nullptr);
  EXPECT_EQ(trace.strings.view(args->collective), "_allgather_base");
  EXPECT_EQ(trace.strings.view(args->dtype), "BFloat16");
  EXPECT_EQ(trace.strings.view(args->group), "shard");
  EXPECT_EQ(trace.strings.view(args->group_ranks), "[0, 1]");
  EXPECT_EQ(args->group_size, 2);
  EXPECT_EQ(args->in_nelems, 500);
  EXPECT_EQ(args->out_nelems, 1000);
  EXPECT_EQ(args->unit, 1U);
  EXPECT_EQ(args->issued, event.start - 2000);
  EXPECT_FALSE(args->emulated);
  const auto kind = collective_kind(trace, event);
  EXPECT_EQ(kind, CollectiveKind::kAllGather);
}

TEST(SpoolTraceTest, KeepsActionsAndHooksInOrderWithTheirCause) {
  const Trace trace = recorded(1);
  std::vector<uint32_t> actions, hooks;
  for (const Event& event : trace.events) {
    if (const trace::ActionArgs* args = trace.action(event)) {
      actions.push_back(args->seq);
      EXPECT_EQ(args->hook_seq, (args->seq - 1) / 3 + 1);
    } else if (const trace::HookArgs* hook = trace.hook(event)) {
      hooks.push_back(hook->seq);
      EXPECT_EQ(hook->hook.hook, Hook::kPreForward);
      EXPECT_TRUE(hook->hook.grad_mode);
    }
  }
  EXPECT_THAT(actions, testing::ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_THAT(hooks, testing::ElementsAre(1, 2, 3));
  EXPECT_EQ(trace.actions[0].action.buffer.generation, 3U);
  EXPECT_EQ(trace.actions[0].action.stream, schedule::Stream::kAllGather);
}

TEST(SpoolTraceTest, WritesInputShapesAsKinetoDoes) {
  const Trace trace = recorded(1);
  const auto products = named(trace, "aten::mm");
  ASSERT_EQ(products.size(), 3U);
  ASSERT_NE(trace.args_json(products[0]), "");
  EXPECT_EQ(trace.args_json(products[0]), R"({"Input Dims": [[128, 64], [64, 32]]})");
  EXPECT_EQ(products[0].category, Category::kCpuOp);
}

TEST(SpoolTraceTest, SortsByStartWithEnclosingEventsFirst) {
  const Trace trace = recorded(3);
  for (size_t i = 1; i < trace.events.size(); ++i) {
    const Event &a = trace.events[i - 1], &b = trace.events[i];
    EXPECT_TRUE(a.start < b.start || (a.start == b.start && a.duration >= b.duration)) << i;
  }
}

TEST(SpoolTraceTest, SaysWhatARecoveredSpoolLacks) {
  const Trace trace = recorded(1, false);
  EXPECT_EQ(named(trace, "ProfilerStep#5").size(), 1U);
  EXPECT_EQ(named(trace, "ProfilerStep#6").size(), 0U);
  std::vector<std::string> messages;
  for (const trace::Diagnostic& diagnostic : trace.diagnostics) {
    messages.push_back(diagnostic.message);
  }
  EXPECT_THAT(messages, testing::UnorderedElementsAre(testing::HasSubstr("step 6 has no end"),
                                                      testing::HasSubstr("without an end marker")));
}

TEST(SpoolTraceTest, NamesUnitsWhoseNamesWereLostByNumber) {
  trace::Spool spool;
  spool.header.process = 10;
  const TestDirectory directory;
  SpoolRecorder recorder(options_in(directory.path()));  // units() is never called
  uint32_t seq = 0;
  record_step(recorder, 0, seq);
  recorder.finish();
  const Trace trace = spool_to_trace(trace::read_spool(recorder.path()));
  EXPECT_EQ(named(trace, "FSDP::pre_forward (unit 2)").size(), 1U);
  EXPECT_EQ(trace.units.size(), 3U);
}

}  // namespace
}  // namespace shardlens::record
