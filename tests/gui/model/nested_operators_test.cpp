#include "gui/model/lanes/nested_operators.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "gui/model/lanes/lane_arrangement.h"
#include "tests/gui/qt_test.h"
#include "tests/gui/small_gpu_trace.h"

namespace shardlens::gui {
namespace {

std::vector<std::string> names_at(const trace::Trace& trace, const LaneRow& row) {
  std::vector<std::string> out;
  for (const LaneItem& item : row.items()) {
    out.emplace_back(trace.name(trace.events[item.ref]));
  }
  return out;
}

TEST(NestedOperatorsTest, OperatorsOfATraceByHand) {
  const trace::Trace trace = small_gpu_trace();
  const std::vector<NestedThread> threads = nested_operators(trace);
  ASSERT_EQ(threads.size(), 1);
  ASSERT_EQ(threads[0].depths.size(), 2);
  using Names = std::vector<std::string>;
  EXPECT_EQ(names_at(trace, threads[0].depths[0]),
            (Names{"aten::linear", "aten::item", "aten::mul", "aten::add"}));
  EXPECT_EQ(names_at(trace, threads[0].depths[1]),
            (Names{"aten::addmm", "aten::_local_scalar_dense"}));
}

// Every operator is at one depth, and within one of the depth above.
TEST(NestedOperatorsTest, EveryOperatorIsInItsCaller) {
  const RunPointer run = open_run(pytorch_run("fsdp2-default"));
  const trace::Trace& trace = run->ranks[0]->trace;
  size_t found = 0, deepest = 0;
  const std::vector<NestedThread> threads = nested_operators(trace);
  for (const NestedThread& thread : threads) {
    deepest = std::max(deepest, thread.depths.size());
    for (size_t depth = 0; depth < thread.depths.size(); ++depth) {
      found += thread.depths[depth].items().size();
      for (const LaneItem& item : thread.depths[depth].items()) {
        EXPECT_EQ(trace.events[item.ref].track, thread.track);
        if (depth > 0) {
          const LaneRow& above = thread.depths[depth - 1];
          const size_t i = above.first_ending_after(item.start);
          ASSERT_LT(i, above.items().size());
          EXPECT_LE(above.items()[i].start, item.start);
        }
      }
    }
  }
  ASSERT_GT(threads.size(), 1);  // backward runs on a thread of its own, below the program's
  const std::vector<std::string> outermost = names_at(trace, threads[0].depths[0]);
  EXPECT_TRUE(std::ranges::any_of(
      outermost, [](const std::string& name) { return name.starts_with("ProfilerStep"); }));
  for (size_t i = 1; i < threads.size(); ++i) {
    EXPECT_LE(threads[i - 1].depths[0].items().front().start,
              threads[i].depths[0].items().front().start);
  }
  EXPECT_GT(deepest, 3);
  const auto expected = std::ranges::count_if(trace.events, [](const trace::Event& event) {
    return event.duration > 0 && (event.category == trace::Category::kCpuOp ||
                                  event.category == trace::Category::kUserAnnotation);
  });
  EXPECT_EQ(found, static_cast<size_t>(expected));
}

TEST(LaneArrangementTest, LanesAreMovedHiddenAndPinned) {
  const QStringList lanes{"host", "compute", "all-gather", "exposed"};
  LaneArrangement arrangement;
  EXPECT_EQ(arrangement.arranged(lanes), lanes);
  EXPECT_TRUE(arrangement.move("exposed", -1, lanes));
  EXPECT_EQ(arrangement.arranged(lanes), (QStringList{"host", "compute", "exposed", "all-gather"}));
  EXPECT_FALSE(arrangement.move("host", -1, lanes));
  EXPECT_FALSE(arrangement.move("no lane", 1, lanes));
  arrangement.toggleHidden("compute");
  EXPECT_TRUE(arrangement.move("exposed", -1, lanes));  // over the hidden one
  EXPECT_EQ(arrangement.arranged(lanes), (QStringList{"exposed", "host", "compute", "all-gather"}));
  // Another run has one lane more and one less: the new lane is below the lane that precedes it by
  // default.
  EXPECT_EQ(arrangement.arranged({"host", "operators", "compute", "exposed"}),
            (QStringList{"exposed", "host", "operators", "compute"}));
  arrangement.togglePin({3, "compute"});
  EXPECT_TRUE(arrangement.isPinned({3, "compute"}));
  EXPECT_FALSE(arrangement.isPinned({2, "compute"}));
  arrangement.togglePin({3, "compute"});
  EXPECT_TRUE(arrangement.pinned.empty());
}

}  // namespace
}  // namespace shardlens::gui
