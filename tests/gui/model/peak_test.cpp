#include <map>

#include <QTemporaryDir>

#include "core/base/format_bytes.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/tables/peak_table.h"
#include "gui/model/what_if/fit_text.h"
#include "tests/gui/qt_test.h"
#include "tests/gui/small_gpu.h"

namespace shardlens::gui {
namespace {

class PeakTest : public QtTest<QCoreApplication> {
 protected:
  void simulate() {
    session_.simulateNow();
    ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
    table_.show(session_);
  }
  // Of the rows' texts, each of which is rounded.
  void expectSum(int column, Bytes expected) {
    const std::map<QString, double> units{{"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}};
    double sum = 0, rounding = 0;
    for (int row = 0; row < table_.rowCount(); ++row) {
      const QStringList text = table_.index(row, column).data().toString().split(' ');
      if (text.size() == 2) {
        const double unit = units.at(text[1]);
        sum += text[0].toDouble() * unit;
        rounding += unit > 1 ? 0.005 * unit : 0;
      }
    }
    EXPECT_NEAR(sum, static_cast<double>(expected), rounding + 1) << column;
  }
  PlanSession session_;
  PeakTable table_;
};

// The rows of a version sum to its peak, in total and by category.
TEST_F(PeakTest, RowsSumToThePeakOfBothPlans) {
  table_.show(session_);
  EXPECT_EQ(table_.rowCount(), 0);
  session_.start(sample(), {sample_run()});
  ASSERT_TRUE(wait_for([&] { return !session_.isObserving(); }));
  simulate();
  ASSERT_EQ(table_.peaks().size(), 1);
  expectSum(3, session_.current()->peak());
  expectSum(4, session_.current()->peak());
  PlanState kept = session_.state();
  kept.plan.reshard_after_forward = plan::Reshard{plan::Reshard::Kind::kNo, 0};
  for (plan::UnitEntry& unit : kept.plan.units) {
    unit.reshard_after_forward = plan::Reshard{plan::Reshard::Kind::kNo, 0};
  }
  session_.edit("kept", kept);
  simulate();
  ASSERT_EQ(table_.peaks().size(), 2);
  EXPECT_EQ(table_.peaks()[0].title, "v0");
  EXPECT_EQ(table_.peaks()[1].title, "v1");
  const std::vector<PlanVersion>& versions = session_.versions();
  EXPECT_EQ(table_.peaks()[0].sum(), versions[0].peak());
  EXPECT_EQ(table_.peaks()[1].sum(), versions[1].peak());
  EXPECT_GT(versions[1].peak(), versions[0].peak());
  expectSum(3, versions[0].peak());
  expectSum(4, versions[1].peak());
  // Unsharded parameters of all units at the peak, where the own plan has those of few.
  std::map<QString, int> units;
  for (int row = 0; row < table_.rowCount(); ++row) {
    const auto text = [&](int column) { return table_.index(row, column).data().toString(); };
    if (text(0) == "unsharded") {
      units["before"] += text(3) == "–" ? 0 : 1;
      units["now"] += text(4) == "–" ? 0 : 1;
    }
  }
  EXPECT_GT(units["now"], units["before"]);
  EXPECT_GT(units["before"], 0);
}

// A plan that does not fit has the peak that it would have with enough memory, and what there is.
TEST_F(PeakTest, APlanThatDoesNotFitSaysWhatItNeeds) {
  session_.start(sample(), {sample_run()});
  ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
  PlanState state = session_.state();
  state.machine = "8xH100";
  session_.edit("a GPU", state);
  simulate();
  const PlanVersion enough = *session_.current();
  EXPECT_TRUE(enough.hasStep());
  EXPECT_EQ(table_.peaks().back().need, "");
  constexpr Bytes kAvailable = 8 << 20;
  const QTemporaryDir directory;
  state.machine = QString::fromStdString(small_gpu(directory.path().toStdString(), kAvailable));
  session_.edit("a small GPU", state);
  simulate();
  const PlanVersion& now = *session_.current();
  EXPECT_FALSE(now.hasStep());
  EXPECT_EQ(now.peak(), enough.peak());
  EXPECT_EQ(now.prediction.memory.peak_reserved, enough.prediction.memory.peak_reserved);
  EXPECT_EQ(now.prediction.available, kAvailable);
  const QString need =
      QString("%1 of 8.00 MiB").arg(static_cast<double>(enough.peak()) / (1 << 20), 0, 'f', 2);
  EXPECT_EQ(unfitText(now.prediction), "does not fit: it needs " + need);
  EXPECT_EQ(table_.peaks().back().need, need);
  EXPECT_EQ(table_.peaks().back().sum(), enough.peak());
  EXPECT_EQ(table_.peaks().back().available, kAvailable);
  EXPECT_EQ(now.run->unfit, unfitText(now.prediction));
}

TEST_F(PeakTest, WhatIsCachedMayBeTooMuchToo) {
  EXPECT_EQ(needText(70 << 20, 90 << 20, 80 << 20), "90.00 reserved of 80.00 MiB");
  EXPECT_EQ(needText(81 << 20, 90 << 20, 80 << 20), "81.00 of 80.00 MiB");
  EXPECT_EQ(needText(Bytes{3} << 30, Bytes{3} << 30, 80 << 20), "3.00 GiB of 80.00 MiB");
  // Never "80.00 of 80.00 GiB".
  constexpr Bytes kMiB = 1 << 20, kLimit = Bytes{80} << 30;
  EXPECT_EQ(needText(kLimit + 3 * kMiB, kLimit + kMiB, kLimit), "3.00 MiB more than 80.00 GiB");
  EXPECT_EQ(needText(kLimit - kMiB, kLimit + 2 * kMiB, kLimit),
            "2.00 MiB more reserved than 80.00 GiB");
}

}  // namespace
}  // namespace shardlens::gui
