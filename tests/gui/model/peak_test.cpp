#include <map>

#include "core/base/format_bytes.h"
#include "gui/model/tables/peak_table.h"
#include "tests/gui/qt_test.h"

namespace shardlens::gui {
namespace {

class PeakTest : public QtTest<QCoreApplication> {
 protected:
  void simulate() {
    session_.simulateNow();
    ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
    table_.show(session_);
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

}  // namespace
}  // namespace shardlens::gui
