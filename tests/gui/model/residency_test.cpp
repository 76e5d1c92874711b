#include "gui/model/lanes/residency.h"

#include <map>
#include <set>

#include "tests/gui/qt_test.h"

namespace shardlens::gui {
namespace {

using schedule::Op;

trace::RecordedAction action(Op op, const std::string& unit, Nanoseconds start) {
  trace::RecordedAction out;
  out.seq = static_cast<uint32_t>(start);
  out.op = op;
  out.unit = unit;
  out.start = out.end = start;
  return out;
}

// Two units: "a" is gathered twice, "b" is prefetched once in vain and then kept.
TEST(ResidencyTest, IsFromTheAllGatherToTheFree) {
  trace::Trace trace;
  trace::Event step;
  step.start = 0;
  step.duration = 100;
  trace.events.push_back(step);
  trace.recorded_actions = {action(Op::kAllGather, "a", 1),  action(Op::kUseFull, "a", 4),
                            action(Op::kAllGather, "b", 6),  action(Op::kUseShard, "a", 9),
                            action(Op::kAllGather, "b", 20), action(Op::kUseFull, "b", 26),
                            action(Op::kUseFull, "a", 30),  // a group of one rank has no all-gather
                            action(Op::kUseShard, "a", 35)};
  const std::vector<Residency> found = residencies_of(trace);
  ASSERT_EQ(found.size(), 3);
  const auto same = [&found](size_t i, const char* unit, Nanoseconds start, Nanoseconds usable,
                             Nanoseconds end) {
    EXPECT_EQ(found[i].unit, unit);
    EXPECT_EQ(found[i].when, (analysis::Interval{start, end})) << i;
    EXPECT_EQ(found[i].usable, usable);
  };
  same(0, "a", 1, 4, 9);
  same(1, "b", 20, 26, 100);
  same(2, "a", 30, 30, 35);
}

// The host is far ahead: it frees "a" at 9, when the device has not begun to receive it. "b" is
// issued while "a" computes; its second use has no all-gather in the trace.
TEST(ResidencyTest, ADeviceHasItFromItsAllGatherToItsLastKernel) {
  const std::vector<Residency> issued{{"a", {1, 9}, 4}, {"b", {6, 20}, 12}, {"b", {30, 40}, 35}};
  analysis::Timeline timeline;
  timeline.units = {"a", "b"};
  const auto all_gather = [&timeline](uint32_t unit, Nanoseconds call, analysis::Interval when) {
    analysis::Collective out;
    out.kind = CollectiveKind::kAllGather;
    out.unit = unit;
    out.issued = call;
    out.when = when;
    timeline.collectives.push_back(out);
  };
  const auto kernel = [&timeline](Nanoseconds launched, analysis::Interval when) {
    analysis::DeviceEvent out;
    out.launched = launched;
    out.when = when;
    timeline.device_events.push_back(out);
  };
  all_gather(0, 2, {100, 150});
  all_gather(1, 7, {150, 220});
  kernel(5, {150, 300});   // of a
  kernel(13, {300, 400});  // of b
  kernel(36, {400, 450});  // of b, the second time
  EXPECT_EQ(on_device(issued, timeline).front().when, issued.front().when);  // a trace of the CPU
  timeline.device = true;
  const std::vector<Residency> found = on_device(issued, timeline);
  ASSERT_EQ(found.size(), 3);
  const auto same = [&found](size_t i, analysis::Interval when, Nanoseconds usable) {
    EXPECT_EQ(found[i].when, when) << i;
    EXPECT_EQ(found[i].usable, usable) << i;
  };
  same(0, {100, 300}, 150);
  same(1, {150, 400}, 300);
  same(2, {400, 450}, 400);
}

class ResidencyOfRunsTest : public QtTest<QCoreApplication> {};

// In captures and in runs of shardlens.record each unit is held as often as its plan gathers it,
// and nothing that was freed is held.
TEST_F(ResidencyOfRunsTest, EveryGatherIsHeldUntilItIsFreed) {
  for (const std::string& path :
       {sample_run(), std::string(SHARDLENS_TEST_DATA) + "/recorded_run"}) {
    const RunPointer run = open_run(path);
    for (const auto& rank : run->ranks) {
      std::map<std::string, int64_t> gathers, held;
      for (const IssuedAction& each : issued_actions(rank->trace)) {
        gathers[each.unit] += each.op == Op::kAllGather ? 1 : 0;
      }
      ASSERT_FALSE(rank->residencies.empty()) << path;
      for (const Residency& each : rank->residencies) {
        EXPECT_LE(each.when.start, each.usable);
        EXPECT_LT(each.usable, each.when.end);
        ++held[each.unit];
      }
      EXPECT_EQ(gathers, held) << path;
      const auto lane = std::ranges::find(rank->lanes, Lane::Source::kResidency, &Lane::source);
      ASSERT_NE(lane, rank->lanes.end());
      size_t items = 0;
      for (const LaneRow& row : lane->rows) {
        items += row.items().size();
      }
      EXPECT_EQ(items, rank->residencies.size());
    }
  }
  EXPECT_TRUE(open_run(pytorch_run("fsdp2-default"))->ranks[0]->residencies.empty());
}

}  // namespace
}  // namespace shardlens::gui
