#include "gui/model/what_if/plan_scaling.h"

#include <cmath>

#include "gui/model/base/plot_scale.h"
#include "sim/search/on_ranks.h"
#include "tests/gui/qt_test.h"

namespace shardlens::gui {
namespace {

class PlanScalingTest : public QtTest<QCoreApplication> {
 protected:
  void SetUp() override {
    QtTest::SetUp();
    session_.start(plan::load_model_config(sample_run() + "/config.json"), "8xH100");
    ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
    scaling_.follow(true);
    finish();
  }
  void finish() {
    ASSERT_TRUE(wait_for([&] { return !scaling_.isBusy(); }));
  }
  const ScalePoint& at(int64_t value) {
    for (const ScalePoint& point : scaling_.points()) {
      if (point.value == value) {
        return point;
      }
    }
    throw std::runtime_error("no such point");
  }
  PlanSession session_;
  PlanScaling scaling_{session_};
};

TEST_F(PlanScalingTest, EachPointIsThePlanAtThatSize) {
  const sim::Scenario own = scenario_of(session_.subject(), session_.state());
  ASSERT_EQ(scaling_.points().size(), 11U);  // 1, 2, 4, … 1024
  EXPECT_EQ(scaling_.now()->figures, session_.current()->prediction.figures);
  for (const int64_t ranks : {1, 8, 16, 1024}) {
    const sim::Prediction expected = sim::evaluate(ranks == 8 ? own : sim::on_ranks(own, ranks));
    EXPECT_EQ(at(ranks).figures, expected.figures) << ranks;
    EXPECT_DOUBLE_EQ(at(ranks).tokens_per_s, expected.tokens_per_s);
    EXPECT_EQ(at(ranks).peak, expected.memory.peak_allocated);
    EXPECT_EQ(at(ranks).now, ranks == 8);
    EXPECT_FALSE(at(ranks).limits.empty());
  }
  int told = 0;
  const QObject context;
  QObject::connect(&scaling_, &PlanScaling::changed, &context, [&told] { ++told; });
  scaling_.setAxis(ScaleAxis::kBatch);
  EXPECT_TRUE(scaling_.points().empty());
  EXPECT_EQ(told, 1);  // a table must not read points that are gone
  finish();
  sim::Scenario larger = own;
  larger.step.batch = 16;
  EXPECT_EQ(at(16).figures, sim::evaluate(larger).figures);
  scaling_.setAxis(ScaleAxis::kSeq);
  finish();
  for (const ScalePoint& point : scaling_.points()) {
    sim::Scenario of = own;
    of.step.seq = point.value;
    EXPECT_EQ(point.figures, sim::evaluate(of).figures) << point.value;
  }
}

// While one answer is made, more are asked for.
TEST_F(PlanScalingTest, TheLatestSpeedsWin) {
  for (int i = 1; i <= 40; ++i) {
    scaling_.setSpeeds({.compute = std::exp2(-i / 10.0)});
  }
  finish();
  const sim::Scenario own = scenario_of(session_.subject(), session_.state());
  EXPECT_EQ(scaling_.now()->figures,
            sim::at_speeds(own, sim::evaluate(own), {.compute = 1.0 / 16}).figures);
  EXPECT_EQ(at(8).figures, scaling_.now()->figures);
  scaling_.setSpeeds({});
  finish();
  EXPECT_EQ(scaling_.now()->figures, session_.current()->prediction.figures);
}

TEST_F(PlanScalingTest, FollowsThePlanWhileItIsShown) {
  scaling_.follow(false);
  PlanState next = session_.state();
  next.step.batch = 4;
  session_.edit("batch 4", next);
  ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
  scaling_.follow(false);
  EXPECT_FALSE(scaling_.isBusy());
  scaling_.follow(true);
  finish();
  EXPECT_EQ(scaling_.now()->figures, session_.current()->prediction.figures);
  session_.stop();
  scaling_.follow(true);
  EXPECT_FALSE(scaling_.now().has_value());
  EXPECT_TRUE(scaling_.points().empty());
}

TEST(PlotScaleTest, TicksAreRoundAndInside) {
  PlotScale linear;
  linear.add(310);
  linear.add(420);
  linear.settle();
  EXPECT_FALSE(linear.isLogarithmic());
  EXPECT_EQ(linear.ticks(7, 1), (std::vector<double>{320, 340, 360, 380, 400, 420}));
  EXPECT_NEAR(linear.value(linear.position(333)), 333, 1e-9);
  PlotScale wide;
  wide.add(3);
  wide.add(900);
  wide.settle();
  EXPECT_TRUE(wide.isLogarithmic());
  EXPECT_EQ(wide.ticks(9, 1), (std::vector<double>{5, 10, 20, 50, 100, 200, 500, 1000}));
  EXPECT_EQ(wide.ticks(4, 1), (std::vector<double>{10, 100, 1000}));
  EXPECT_NEAR(wide.value(wide.position(50)), 50, 1e-9);
  PlotScale one;
  one.add(7);
  one.settle();
  EXPECT_DOUBLE_EQ(one.position(7), 0.5);
  EXPECT_FALSE(one.ticks(4, 1).empty());
  PlotScale none;
  none.settle();
  EXPECT_DOUBLE_EQ(none.position(0.5), 0.5);
}

}  // namespace
}  // namespace shardlens::gui
