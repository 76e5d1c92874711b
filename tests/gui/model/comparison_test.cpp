#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include <QRegularExpression>
#include <QTemporaryDir>

#include "gui/model/compare/compare_session.h"
#include "gui/model/compare/comparison_tree.h"
#include "profiler/check/baseline_file.h"
#include "profiler/check/run_summary.h"
#include "tests/gui/qt_test.h"

namespace shardlens::gui {
namespace {

using By = ComparisonTree::By;

class ComparisonTest : public QtTest<QCoreApplication> {
 protected:
  static std::shared_ptr<const check::Comparison> compared(const std::string& a,
                                                           const std::string& b) {
    check::SummaryOptions items;
    items.items = true;
    return std::make_shared<const check::Comparison>(
        check::compare_runs({check::summarize(trace::Run::open(a), items)},
                            {check::summarize(trace::Run::open(b), items)}));
  }
  // Waits for changed() (true) or failed() (false).
  bool answered() {
    QString message;
    bool changed = false;
    QObject::connect(&session_, &CompareSession::changed, [&] { changed = true; });
    QObject::connect(&session_, &CompareSession::failed, [&](const QString& m) { message = m; });
    EXPECT_TRUE(wait_for([&] { return changed || !message.isEmpty(); }));
    session_.disconnect();
    message_ = message;
    return changed;
  }
  CompareSession session_;
  QString message_;
};

TEST_F(ComparisonTest, PartsSumToTheStepsChange) {
  const auto comparison = compared(pytorch_run("fsdp2-prefetch"), pytorch_run("fsdp2-no-reshard"));
  double step = 0, a = 0, b = 0;
  for (const check::MetricResult& metric : comparison->result.metrics) {
    if (metric.metric == check::Metric::kStepTime) {
      step = metric.effect.change;
      a = metric.effect.baseline;
      b = metric.effect.candidate;
    }
  }
  ASSERT_NE(step, 0);
  for (const check::AttributionRow& row : comparison->result.attribution) {
    EXPECT_EQ(row.delta, row.candidate - row.baseline);
    a -= row.baseline;
    b -= row.candidate;
  }
  EXPECT_NEAR(a, 0, 1e-3);
  EXPECT_NEAR(b, 0, 1e-3);
  ComparisonTree tree;
  const QAbstractItemModelTester tester(&tree,
                                        QAbstractItemModelTester::FailureReportingMode::Warning);
  tree.show(comparison, By::kStep);
  double sum = 0;
  ASSERT_GT(tree.rowCount(), 1);
  for (int row = 0; row < tree.rowCount(); ++row) {
    const QModelIndex group = tree.index(row, 0);
    double rows = 0;
    for (int child = 0; child < tree.rowCount(group); ++child) {
      rows += tree.deltaAt(tree.index(child, 0, group));
    }
    EXPECT_NEAR(rows, tree.deltaAt(group), 1e-6);
    for (const int column : {ComparisonTree::kA, ComparisonTree::kB}) {
      EXPECT_NE(group.siblingAtColumn(column).data().toString(), "–");
    }
    sum += tree.deltaAt(group);
  }
  EXPECT_NEAR(sum, step, 1e-3);
}

// All figures of a column, of both runs, have one unit.
TEST_F(ComparisonTest, AColumnHasOneUnit) {
  const auto comparison = compared(pytorch_run("fsdp2-prefetch"), pytorch_run("fsdp2-no-reshard"));
  ComparisonTree tree;
  for (const By by : {By::kStep, By::kUnit, By::kPhase, By::kKind}) {
    tree.show(comparison, by);
    std::map<int, std::set<QString>> units;  // A and B together
    const std::function<void(const QModelIndex&)> visit = [&](const QModelIndex& parent) {
      for (int row = 0; row < tree.rowCount(parent); ++row) {
        for (int column = 1; column < tree.columnCount(); ++column) {
          const QString text = tree.index(row, column, parent).data().toString();
          static const QRegularExpression kTime("([0-9.]+) ([a-zµ]+)$");
          if (const auto time = kTime.match(text); time.hasMatch()) {
            const int pair = column == ComparisonTree::kB          ? ComparisonTree::kA
                             : column == ComparisonTree::kExposedB ? ComparisonTree::kExposedA
                                                                   : column;
            units[pair].insert(time.captured(2));
          }
        }
        visit(tree.index(row, 0, parent));
      }
    };
    visit({});
    EXPECT_GE(units.size(), by == By::kStep ? 2 : 4);
    for (const auto& [column, found] : units) {
      EXPECT_EQ(found.size(), 1) << column;
    }
  }
}

// With every grouping each item is listed once, and the groups sum to the total change.
TEST_F(ComparisonTest, GroupsHoldEveryItemOnce) {
  const auto comparison = compared(pytorch_run("fsdp2-prefetch"), pytorch_run("fsdp2-no-reshard"));
  double total = 0;
  std::map<std::string, double> by_unit;
  size_t alone = 0;
  for (const check::ItemChange& item : comparison->items) {
    total += item.delta;
    by_unit[item.key.unit] += item.delta;
    alone += item.matched() ? 0 : 1;
  }
  EXPECT_GT(alone, 0);  // without resharding there are no all-gathers in backward
  ComparisonTree tree;
  const QAbstractItemModelTester tester(&tree,
                                        QAbstractItemModelTester::FailureReportingMode::Warning);
  for (const By by : {By::kUnit, By::kPhase, By::kKind}) {
    tree.show(comparison, by);
    size_t rows = 0, unmatched = 0;
    double sum = 0;
    double last = 1e300;
    for (int row = 0; row < tree.rowCount(); ++row) {
      const QModelIndex group = tree.index(row, 0);
      EXPECT_LE(std::abs(tree.deltaAt(group)), last);  // the largest change first
      last = std::abs(tree.deltaAt(group));
      sum += tree.deltaAt(group);
      rows += static_cast<size_t>(tree.rowCount(group));
      for (int child = 0; child < tree.rowCount(group); ++child) {
        unmatched += tree.index(child, 0, group).data(ComparisonTree::kUnmatchedRole).toBool();
      }
      if (by == By::kUnit) {
        EXPECT_NEAR(tree.deltaAt(group), by_unit[*tree.unitAt(group)], 1e-6);
      }
    }
    EXPECT_EQ(rows, comparison->items.size());
    EXPECT_EQ(unmatched, alone);
    EXPECT_NEAR(sum, total, 1e-3);
  }
  tree.show(nullptr, By::kUnit);
  EXPECT_EQ(tree.rowCount(), 0);
}

TEST_F(ComparisonTest, ARunBesideItselfHasNoChanges) {
  session_.start(sample(), sample());
  ASSERT_TRUE(answered());
  for (const check::ItemChange& item : session_.comparison()->items) {
    EXPECT_EQ(item.delta, 0);
    EXPECT_TRUE(item.matched());
  }
  EXPECT_TRUE(session_.comparison()->result.structural.empty());
}

TEST_F(ComparisonTest, TheOtherRunIsReadAndCompared) {
  const RunPointer a = open_run(pytorch_run("fsdp2-prefetch"));
  session_.start(a, {pytorch_run("fsdp2-bf16")});
  EXPECT_TRUE(session_.isBusy());
  ASSERT_TRUE(answered());
  EXPECT_TRUE(session_.isOpen());
  EXPECT_EQ(session_.a(), a);
  EXPECT_NE(session_.b(), nullptr);
  session_.close();
  EXPECT_FALSE(session_.isOpen());
}

// With several runs per side the result is that of `shardlens compare` for the two directories.
TEST_F(ComparisonTest, DirectoriesOfRunsAreComparedWhole) {
  const QTemporaryDir folder;
  const std::filesystem::path root = folder.path().toStdString();
  const auto make = [&root](const char* side, std::initializer_list<const char*> runs) {
    for (int n = 0; const char* run : runs) {
      std::filesystem::create_directories(root / side);
      std::filesystem::create_directory_symlink(pytorch_run(run),
                                                root / side / ("run" + std::to_string(n++)));
    }
  };
  make("a", {"fsdp2-prefetch", "fsdp2-bf16"});
  make("b", {"fsdp2-no-reshard", "fsdp2-no-reshard", "fsdp2-bf16"});
  const RunPointer a = open_run(root / "a/run0");
  session_.start(a, {root / "b"}, {root / "a"});
  ASSERT_TRUE(answered()) << message_.toStdString();
  EXPECT_EQ(session_.countOfA(), 2U);
  EXPECT_EQ(session_.countOfB(), 3U);
  check::SummaryOptions items;
  items.items = true;
  const check::Comparison expected =
      check::compare_runs(check::read_runs(root / "a", items), check::read_runs(root / "b", items));
  ASSERT_EQ(session_.comparison()->items.size(), expected.items.size());
  for (size_t i = 0; i < expected.items.size(); ++i) {
    EXPECT_EQ(session_.comparison()->items[i].delta, expected.items[i].delta) << i;
  }
  session_.swap();
  ASSERT_TRUE(answered());
  EXPECT_EQ(session_.countOfA(), 3U);
  EXPECT_EQ(session_.b(), a);
  session_.start(a, {root});  // contains directories of runs, but no run
  EXPECT_FALSE(answered());
  EXPECT_TRUE(message_.contains("contains neither traces")) << message_.toStdString();
}

TEST_F(ComparisonTest, WhatCannotBeComparedIsAMessage) {
  session_.start(sample(), {std::string("/no/such/run")});
  EXPECT_FALSE(answered());
  EXPECT_TRUE(message_.contains("/no/such/run")) << message_.toStdString();
  // A run with another number of ranks.
  session_.start(sample(), {pytorch_run("fsdp2-default")});
  EXPECT_FALSE(answered());
  EXPECT_FALSE(message_.isEmpty());
  EXPECT_FALSE(session_.isOpen());
}

}  // namespace
}  // namespace shardlens::gui
