#include <algorithm>
#include <map>

#include "gui/model/base/time_axis.h"
#include "gui/model/run/selection_context.h"
#include "gui/model/tables/exposed_groups.h"
#include "gui/model/tables/exposed_table.h"
#include "gui/model/tables/ranks_table.h"
#include "tests/gui/qt_test.h"

namespace shardlens::gui {
namespace {

class RanksTest : public QtTest<QCoreApplication> {
 protected:
  static QString cell(const ColumnTable& table, int row, const char* title) {
    for (int column = 0; column < table.columnCount(); ++column) {
      if (table.headerData(column, Qt::Horizontal, Qt::DisplayRole).toString() == title) {
        return table.index(row, column).data().toString();
      }
    }
    throw std::runtime_error(title);
  }
  SelectionContext selection_;
};

TEST_F(RanksTest, EveryRankHasItsFiguresTheLatestFirst) {
  const RunPointer run = open_run(pytorch_run("fsdp2-default"));
  selection_.setRun(run);
  RanksTable table;
  const QAbstractItemModelTester tester(&table,
                                        QAbstractItemModelTester::FailureReportingMode::Warning);
  for (const bool step : {false, true}) {
    selection_.selectStep(step ? std::optional<size_t>(1) : std::nullopt);
    table.show(selection_);
    ASSERT_EQ(table.rowCount(), static_cast<int>(run->ranks.size()));
    Nanoseconds before = -1;
    for (int row = 0; row < table.rowCount(); ++row) {
      const size_t rank = table.rankAt(table.index(row, 0));
      const analysis::RankAnalysis& figures = run->ranks[rank]->figures;
      const StepFigures& expected = step ? figures.steps[1].figures : figures.figures;
      EXPECT_EQ(cell(table, row, "Exposed"), durationText(expected.exposed_comm));
      EXPECT_EQ(cell(table, row, "Compute"), durationText(expected.compute));
      EXPECT_EQ(cell(table, row, "Idle"), durationText(expected.idle));
      EXPECT_EQ(cell(table, row, "Time"), durationText(expected.duration()));
      const Nanoseconds held_up = run->analysis.matching.stragglers[rank].held_up;
      EXPECT_EQ(cell(table, row, "Others waited"), durationText(held_up));
      EXPECT_TRUE(before < 0 || held_up <= before);
      before = held_up;
      EXPECT_EQ(table.indexOfRank(rank).row(), row);
    }
  }
  selection_.setRun(nullptr);
  table.show(selection_);
  EXPECT_EQ(table.rowCount(), 0);
  EXPECT_EQ(table.summary(), "");
}

TEST_F(RanksTest, TheStragglerIsNamed) {
  const auto run = std::make_shared<RunData>(trace::Run::open(pytorch_run("fsdp2-default")));
  ASSERT_EQ(run->ranks.size(), 2);
  std::vector<analysis::StragglerFigures>& stragglers = run->analysis.matching.stragglers;
  ASSERT_EQ(stragglers.size(), 2);
  stragglers[0].last = 9;
  stragglers[0].held_up = 2'000'000;
  stragglers[1].last = 31;
  stragglers[1].held_up = 7'000'000;
  selection_.setRun(run);
  RanksTable table;
  table.show(selection_);
  EXPECT_EQ(table.rankAt(table.index(0, 0)), 1);
  EXPECT_TRUE(
      table.summary().endsWith("exposed on 2 ranks. Rank 1 started 31 of 40 collectives "
                               "last; the others waited 7.000 ms for it."))
      << table.summary().toStdString();
  stragglers[0].last = 12;
  stragglers[1].last = 28;
  table.show(selection_);
  EXPECT_TRUE(table.summary().endsWith("No rank is the last in most collectives."));
  // No rank is late in a run whose ranks do the same at the same time, as in a simulation.
  for (analysis::StragglerFigures& each : stragglers) {
    each = {each.rank, 0, 0};
  }
  table.show(selection_);
  EXPECT_TRUE(table.summary().endsWith("The ranks started every collective at the same time."))
      << table.summary().toStdString();
  run->analysis.matching.clocks.clear();
  table.show(selection_);
  EXPECT_TRUE(table.summary().endsWith("so who was late is not known."));
  selection_.setRun(sample());
  table.show(selection_);
  EXPECT_TRUE(
      table.summary().startsWith(QString("%1 exposed on 1 rank. ").arg(cell(table, 0, "Exposed"))));
}

TEST_F(RanksTest, SumsOfExposedCollectivesAddUp) {
  const RunPointer run = open_run(pytorch_run("fsdp2-default"));
  selection_.setRun(run);
  ExposedGroups groups;
  const QAbstractItemModelTester tester(&groups,
                                        QAbstractItemModelTester::FailureReportingMode::Warning);
  Nanoseconds all = 0;
  for (size_t rank = 0; rank < run->ranks.size(); ++rank) {
    selection_.selectRank(rank);
    groups.show(selection_, /*all_ranks=*/false);
    EXPECT_EQ(groups.total(), run->ranks[rank]->figures.figures.exposed_comm);
    all += groups.total();
    // There are fewer rows than collectives, and each row has its collective.
    ExposedTable each;
    each.show(run, rank, selection_.window());
    EXPECT_LT(groups.rowCount(), each.rowCount());
    for (int row = 0; row < groups.rowCount(); ++row) {
      const Selection::Item worst = groups.worstAt(groups.index(row, 0));
      EXPECT_EQ(worst.rank, rank);
      EXPECT_EQ(groups.indexOf(worst).row(), row);
    }
  }
  groups.show(selection_, /*all_ranks=*/true);
  EXPECT_EQ(groups.total(), all);
}

// Computes the spread of each matched collective from its starts on the common clock.
TEST_F(RanksTest, ArrivalSpreadsAreThoseOfTheStarts) {
  const RunPointer run = open_run(pytorch_run("fsdp2-default"));
  selection_.setRun(run);
  std::map<std::pair<uint32_t, uint32_t>, std::vector<Nanoseconds>> starts;
  for (const auto& rank : run->ranks) {
    for (const analysis::Collective& each : rank->timeline.collectives) {
      if (each.last_start) {
        starts[{each.last_rank, each.last_index}].push_back(run->shown(*rank, each.when).start);
      }
    }
  }
  ASSERT_FALSE(starts.empty());
  std::map<std::string, std::vector<Nanoseconds>> by_row;
  for (const auto& [last, of] : starts) {
    ASSERT_EQ(of.size(), run->ranks.size());
    const auto [low, high] = std::ranges::minmax(of);
    const RankData& rank = *run->ranks[last.first];
    by_row[unit_label(rank.owner_of(last.second)) + "|" +
           part_label(rank.timeline.collectives[last.second]).toStdString()]
        .push_back(high - low);
  }
  ExposedGroups groups;
  groups.show(selection_, /*all_ranks=*/true);
  int compared = 0;
  for (int row = 0; row < groups.rowCount(); ++row) {
    std::vector<Nanoseconds>& spreads = by_row[cell(groups, row, "Unit").toStdString() + "|" +
                                               cell(groups, row, "Collective").toStdString()];
    std::sort(spreads.begin(), spreads.end());
    const QString shown = cell(groups, row, "Arrival spread");
    if (spreads.empty()) {
      EXPECT_EQ(shown, "–");
      continue;
    }
    // The row may lack collectives that were overlapped on all ranks.
    const auto same = [&shown](Nanoseconds spread) { return durationText(spread) == shown; };
    EXPECT_TRUE(std::ranges::any_of(spreads, same)) << shown.toStdString();
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace shardlens::gui
