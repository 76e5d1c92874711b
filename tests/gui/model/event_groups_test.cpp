#include "gui/model/tables/event_groups.h"

#include <algorithm>
#include <map>

#include "tests/gui/qt_test.h"
#include "tests/gui/small_gpu_trace.h"
#include "tests/support/generated_run.h"

namespace shardlens::gui {
namespace {

class EventGroupsTest : public QtTest<QCoreApplication> {
 protected:
  static constexpr auto kMode = QAbstractItemModelTester::FailureReportingMode::Fatal;
  const EventGroups::Group* group(const QString& name) const {
    for (int row = 0; row < groups_.rowCount(); ++row) {
      if (groups_.groupAt(groups_.index(row, 0)).name == name) {
        return &groups_.groupAt(groups_.index(row, 0));
      }
    }
    return nullptr;
  }
  QString cell(int row, int column) const { return groups_.index(row, column).data().toString(); }
  SelectionContext selection_;
  EventGroups groups_;
};

// small_gpu_trace(): kernels a of 100 ns, b of 40, c of 180 and d of 200, of which c is here twice.
TEST_F(EventGroupsTest, KernelsOfATraceByHand) {
  const QAbstractItemModelTester tester(&groups_, kMode);
  trace::Trace trace = small_gpu_trace();
  trace.add_complete(trace::Category::kKernel, "c", trace.track(0, 7), 1500, 1560);
  std::vector<trace::Trace> one;
  one.push_back(std::move(trace));
  selection_.setRun(std::make_shared<const RunData>(trace::Run::of(std::move(one))));
  EXPECT_EQ(event_categories(selection_.rank()->trace),
            (std::vector<QString>{"cpu_op", "kernel", "cuda_runtime", "gpu_memcpy"}));

  groups_.show(selection_, {{{}, {}, "kernel"}, EventGrouping::kName, false});
  ASSERT_EQ(groups_.rowCount(), 4);
  EXPECT_EQ(groups_.sum(), 100 + 40 + 180 + 60 + 200);
  EXPECT_EQ(groups_.total(), groups_.sum());
  EXPECT_EQ(groups_.count(), 5);
  // Largest first: c, count 2, 240 of 580 ns, mean 120, from 60 to 180.
  const QStringList expected{"c", "2", "240 ns", "41.4 %", "120 ns", "60 ns", "180 ns"};
  for (int column = 0; column < expected.size(); ++column) {
    EXPECT_EQ(cell(0, column), expected[column]) << column;
  }
  const Selection::Item longest = groups_.groupAt(groups_.index(0, 0)).longest;
  EXPECT_EQ(selection_.rank()->trace.events[longest.ref].duration, 180);
  EXPECT_EQ(groups_.indexOf(longest).row(), 0);

  // A text leaves only some of the names; shares stay fractions of all kernels.
  groups_.show(selection_, {{{}, "^[ab]$", "kernel"}, EventGrouping::kName, false});
  EXPECT_EQ(groups_.rowCount(), 2);
  EXPECT_EQ(groups_.sum(), 140);
  EXPECT_EQ(groups_.total(), 580);
  EXPECT_EQ(cell(0, 3), "17.2 %");

  groups_.show(selection_, {{}, EventGrouping::kCategory, false});
  ASSERT_NE(group("gpu_memcpy"), nullptr);
  EXPECT_EQ(group("gpu_memcpy")->sum, 100);
  EXPECT_EQ(group("kernel")->count, 5);
  groups_.show(selection_, {{{}, {}, "kernel"}, EventGrouping::kTrack, false});
  EXPECT_EQ(groups_.rowCount(), 1);  // one stream
  // Within a range: the events that overlap it.
  const RankData& rank = *selection_.rank();
  selection_.selectRange(selection_.run()->shown(rank, {770, 900}));
  groups_.show(selection_, {{{}, {}, "kernel"}, EventGrouping::kName, false});
  EXPECT_EQ(groups_.rowCount(), 2);
  EXPECT_EQ(groups_.sum(), 40 + 180);
  groups_.clear();
  EXPECT_EQ(groups_.rowCount(), 0);
}

// One stream computes, so the summed kernels of a unit are its compute in the analyzer. All ranks
// together have the sums of the single ranks.
TEST_F(EventGroupsTest, UnitsHaveTheAnalyzersCompute) {
  test::GeneratedRun generated;
  generated.ranks = 2;
  generated.steps = 3;
  const auto run = std::make_shared<const RunData>(generated.run());
  selection_.setRun(run);
  std::map<QString, Nanoseconds> by_name;
  for (size_t r = 0; r < run->ranks.size(); ++r) {
    selection_.selectRank(r);
    const RankData& rank = *run->ranks[r];
    std::map<std::string, Nanoseconds> compute;
    for (const analysis::UnitFigures& unit : rank.figures.units) {
      compute[unit.is_unit ? unit_label(unit.fqn) : unit.fqn] = unit.compute;
    }
    groups_.show(selection_, {{{}, {}, "kernel"}, EventGrouping::kUnit, false});
    Nanoseconds all = 0;
    for (const analysis::DeviceEvent& event : rank.timeline.device_events) {
      all += rank.trace.events[event.event].category == trace::Category::kKernel
                 ? event.when.length()
                 : 0;
    }
    EXPECT_EQ(groups_.sum(), all);
    int compared = 0;
    groups_.show(selection_, {{{}, "^(?!nccl)", "kernel"}, EventGrouping::kUnit, false});
    for (const auto& [name, time] : compute) {
      if (const EventGroups::Group* of = group(QString::fromStdString(name))) {
        EXPECT_EQ(of->sum, time) << name;
        ++compared;
      }
    }
    EXPECT_GT(compared, 3);
    groups_.show(selection_, {{{}, {}, "kernel"}, EventGrouping::kName, false});
    for (int row = 0; row < groups_.rowCount(); ++row) {
      const EventGroups::Group& each = groups_.groupAt(groups_.index(row, 0));
      by_name[each.name] += each.sum;
    }
  }
  groups_.show(selection_, {{{}, {}, "kernel"}, EventGrouping::kName, true});
  EXPECT_EQ(groups_.rowCount(), static_cast<int>(by_name.size()));
  for (const auto& [name, sum] : by_name) {
    ASSERT_NE(group(name), nullptr);
    EXPECT_EQ(group(name)->sum, sum);
  }
}

// A step has the events in it, on every rank.
TEST_F(EventGroupsTest, AStepHasItsOwnEvents) {
  selection_.setRun(sample());
  groups_.show(selection_, {});
  const int64_t all = groups_.count();
  EXPECT_EQ(all, sample()->event_count);
  int64_t steps = 0;
  for (size_t i = 0; i < selection_.rank()->figures.steps.size(); ++i) {
    selection_.selectStep(i);
    groups_.show(selection_, {{{}, "^ProfilerStep#", {}}, EventGrouping::kName, false});
    EXPECT_GE(groups_.rowCount(), 1);
    steps += group("ProfilerStep#" + QString::number(selection_.rank()->figures.steps[i].step)) !=
                     nullptr
                 ? 1
                 : 0;
  }
  EXPECT_EQ(steps, static_cast<int64_t>(selection_.rank()->figures.steps.size()));
}

}  // namespace
}  // namespace shardlens::gui
