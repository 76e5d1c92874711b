#include <algorithm>
#include <filesystem>

#include "gui/model/details/idle_reason.h"
#include "gui/model/details/inspected.h"
#include "gui/model/details/launch_ends.h"
#include "gui/model/lanes/queue_curve.h"
#include "gui/model/run/run_data.h"
#include "tests/gui/qt_test.h"
#include "tests/gui/small_gpu_trace.h"
#include "tests/support/generated_run.h"

namespace shardlens::gui {
namespace {

using analysis::IdleCause;
using analysis::Interval;
using Source = Lane::Source;

class GpuTraceTest : public QtTest<QCoreApplication> {
 protected:
  static const Lane* lane_of(const RankData& rank, const char* name) {
    const auto found = std::ranges::find(rank.lanes, name, &Lane::name);
    return found == rank.lanes.end() ? nullptr : &*found;
  }
  static std::string name_of(const RankData& rank, uint32_t event) {
    return std::string(rank.trace.name(rank.trace.events[event]));
  }
  static size_t items_of(const Lane& lane) {
    size_t out = 0;
    for (const LaneRow& row : lane.rows) {
      out += row.items().size();
    }
    return out;
  }

  // The lanes show what the analyzer computed, and each launch is found from both ends.
  static void check_lanes(const RunData& run) {
    for (const auto& of : run.ranks) {
      const RankData& rank = *of;
      if (!rank.timeline.device) {
        EXPECT_TRUE(rank.idle().empty());
        EXPECT_TRUE(rank.queue.empty());
        EXPECT_EQ(lane_of(rank, Lane::kCalls), nullptr);
        continue;
      }
      const analysis::IdleFigures& idle = rank.figures.idle;
      const Nanoseconds expected[] = {idle.host_late, idle.event_wait, idle.gap, idle.unknown};
      Nanoseconds lengths[analysis::kIdleCauseCount] = {};
      for (const analysis::IdlePart& part : rank.idle()) {
        lengths[static_cast<size_t>(part.cause)] += part.when.length();
      }
      for (size_t i = 0; i < std::size(expected); ++i) {
        EXPECT_EQ(lengths[i], expected[i]) << analysis::name_of(static_cast<IdleCause>(i));
      }
      EXPECT_GE(rank.queue.highest(), rank.figures.launch.queue_max);
      Nanoseconds checked = 0;
      for (const Interval& window : rank.figures.window) {
        checked = std::max<Nanoseconds>(checked, rank.queue.most(window));
      }
      EXPECT_GE(checked, rank.figures.launch.queue_max);
      for (size_t i = 0; i < rank.timeline.device_events.size(); i += 17) {
        const analysis::DeviceEvent& event = rank.timeline.device_events[i];
        const Selection::Item item{0, Source::kEvents, event.event};
        const auto ends = launch_ends(rank, item);
        ASSERT_EQ(ends.has_value(), event.launch != trace::kNoIndex) << i;
        if (ends) {
          EXPECT_EQ(ends->call.ref, event.launch);
          EXPECT_EQ(other_end(rank, item), ends->call);
          ASSERT_TRUE(other_end(rank, ends->call).has_value());
          EXPECT_EQ(launch_ends(rank, ends->call)->call, ends->call);
        }
      }
    }
  }
};

TEST_F(GpuTraceTest, LaunchesAndIdleTimeOfATraceByHand) {
  const auto run = std::make_shared<const RunData>(trace::Run::of({small_gpu_trace()}));
  const RankData& rank = *run->ranks.front();
  const Lane* operators = lane_of(rank, Lane::kOperators);
  const Lane* calls = lane_of(rank, Lane::kCalls);
  ASSERT_NE(operators, nullptr);
  ASSERT_NE(calls, nullptr);
  ASSERT_EQ(operators->rows.size(), 1);
  std::vector<std::string> names;
  for (const LaneItem& item : operators->rows[0].items()) {
    names.push_back(name_of(rank, item.ref));
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"aten::linear", "aten::item", "aten::mul", "aten::add"}));
  EXPECT_EQ(items_of(*calls), 5);

  // Idle: [400,760), of which b's launch came at 750; [800,820) launched at 810; [1200,1300).
  ASSERT_EQ(rank.idle().size(), 5);
  EXPECT_EQ(idle_text(rank, 0), "host late: aten::item");
  EXPECT_EQ(idle_text(rank, 1), "gap");
  EXPECT_EQ(idle_text(rank, 2), "host late: aten::add");
  EXPECT_EQ(rank.idle()[0].when, (Interval{400, 750}));
  EXPECT_EQ(rank.idle()[4].when, (Interval{1200, 1300}));
  const auto next = idle_reason(rank, 0).ended_by;
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(name_of(rank, rank.timeline.device_events[*next].event), "b");

  // Links go from the operator to its kernel, from the kernel to the call, and from idle time to
  // the launch that ended it.
  const Selection::Item add{0, Source::kEvents, operators->rows[0].items()[3].ref};
  ASSERT_TRUE(other_end(rank, add).has_value());
  EXPECT_EQ(name_of(rank, other_end(rank, add)->ref), "c");
  const auto call = other_end(rank, *other_end(rank, add));
  ASSERT_TRUE(call.has_value());
  EXPECT_EQ(rank.trace.events[call->ref].start, 810);
  EXPECT_EQ(rank.trace.events[other_end(rank, {0, Source::kIdle, 0})->ref].start, 750);
  const Selection::Item item{0, Source::kEvents, operators->rows[0].items()[1].ref};
  EXPECT_FALSE(other_end(rank, item).has_value());  // aten::item launched nothing

  // In the queue: a over [150,300), b [750,760), c [810,820), d [850,1000), the copy [860,1300).
  EXPECT_EQ(rank.queue.highest(), 2);
  EXPECT_EQ(rank.queue.most({100, 150}), 0);
  EXPECT_EQ(rank.queue.most({100, 151}), 1);
  EXPECT_EQ(rank.queue.most({299, 300}), 1);
  EXPECT_EQ(rank.queue.most({300, 750}), 0);
  EXPECT_EQ(rank.queue.most({800, 2000}), 2);
  EXPECT_EQ(rank.queue.most({1000, 2000}), 1);
  EXPECT_EQ(rank.figures.launch.queue_max, 2);

  SelectionContext selection;
  selection.setRun(run);
  selection.selectItem({0, Source::kIdle, 0});
  EXPECT_TRUE(inspected(selection).contains("aten::item")) << inspected(selection).toStdString();
  selection.selectItem(*other_end(rank, add));
  EXPECT_TRUE(inspected(selection).contains("cudaLaunchKernel in aten::add"))
      << inspected(selection).toStdString();
  check_lanes(*run);
}

// The depth at any instant, compared with a count over all events.
TEST_F(GpuTraceTest, TheQueueIsWhatACountFinds) {
  test::GeneratedRun generated;
  generated.ranks = 1;
  generated.steps = 3;
  const RunData run(generated.run());
  const RankData& rank = *run.ranks.front();
  const auto count = [&rank](Nanoseconds t) {
    return std::ranges::count_if(rank.timeline.device_events, [t](const auto& e) {
      return e.launch != trace::kNoIndex && e.launched <= t && t < e.when.start;
    });
  };
  const Interval span = rank.timeline.span.front();
  for (Nanoseconds t = span.start - 1000; t < span.end + 1000; t += span.length() / 997) {
    EXPECT_EQ(rank.queue.most({t, t + 1}), count(t)) << t;
  }
}

TEST_F(GpuTraceTest, EightRanksHaveTheAnalyzersFigures) {
  test::GeneratedRun generated;
  generated.ranks = 8;
  generated.steps = 3;
  const RunData run(generated.run());
  ASSERT_EQ(run.ranks.size(), 8);
  check_lanes(run);
  for (const auto& rank : run.ranks) {
    EXPECT_NE(lane_of(*rank, Lane::kCalls), nullptr);
    EXPECT_FALSE(rank->queue.empty());
  }
}

// A trace of the CPU has none of these lanes.
TEST_F(GpuTraceTest, OtherRunsHaveNoSuchLanes) {
  check_lanes(*sample());
  check_lanes(*open_run(std::string(SHARDLENS_TEST_DATA) + "/recorded_run"));
}

TEST_F(GpuTraceTest, RecordedTraces) {
  const std::filesystem::path folder =
      std::filesystem::path(SHARDLENS_OTHER_TRACES) / "third_party";
  if (!std::filesystem::exists(folder)) {
    GTEST_SKIP() << "no traces of other programs in " << folder;
  }
  int devices = 0;
  for (const auto& each : std::filesystem::recursive_directory_iterator(folder)) {
    if (each.path().extension() == ".gz") {
      SCOPED_TRACE(each.path());
      const RunPointer run = open_run(each.path());
      devices += run->ranks.front()->timeline.device ? 1 : 0;
      check_lanes(*run);
    }
  }
  EXPECT_GT(devices, 5);
}

}  // namespace
}  // namespace shardlens::gui
