#include <algorithm>

#include <QTemporaryDir>

#include "gui/model/what_if/plan_proposals.h"
#include "sim/search/search.h"
#include "tests/gui/qt_test.h"
#include "tests/gui/small_gpu.h"

namespace shardlens::gui {
namespace {

class ProposalsTest : public QtTest<QCoreApplication> {
 protected:
  void SetUp() override {
    QtTest::SetUp();
    session_.start(sample(), {sample_run()});
    ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
  }
  void finish() {
    ASSERT_TRUE(wait_for([&] { return !proposals_.isBusy(); }));
  }
  PlanSession session_;
  PlanProposals proposals_{session_};
};

TEST_F(ProposalsTest, ListsWhatAdviseSays) {
  ASSERT_TRUE(proposals_.canAdvise());
  proposals_.advise();
  EXPECT_TRUE(proposals_.isBusy());
  finish();
  const sim::Advice advice = sim::advise(session_.recorded(), sample()->analysis);
  ASSERT_EQ(proposals_.list().size(), advice.changes.size() + advice.others.size())
      << proposals_.note().toStdString();
  ASSERT_FALSE(proposals_.list().empty());
  EXPECT_EQ(proposals_.waste().size(), advice.waste.size());
  for (size_t i = 0; i < proposals_.list().size(); ++i) {
    const sim::AdvisedChange& change =
        i < advice.changes.size() ? advice.changes[i] : advice.others[i - advice.changes.size()];
    const Proposal& shown = proposals_.list()[i];
    EXPECT_EQ(shown.title.toStdString(), change.title);
    EXPECT_EQ(shown.change, change.change);
    EXPECT_EQ(shown.interval->low, change.interval.low);
    EXPECT_EQ(shown.interval->high, change.interval.high);
    EXPECT_EQ(shown.bound, change.bound);
    EXPECT_EQ(shown.odds.text(), change.odds.text());
    EXPECT_EQ(shown.pays, change.pays());
  }
  // Once taken, it is a version with the same prediction.
  const Proposal first = proposals_.list().front();
  proposals_.take(0);
  ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
  EXPECT_EQ(session_.state(), first.state);
  EXPECT_EQ(session_.current()->step(), first.step);
  EXPECT_EQ(session_.versions().front().step() + first.change, first.step);
  EXPECT_EQ(session_.current()->peak(), first.peak);
}

TEST_F(ProposalsTest, TheSearchFindsTheFrontOfAllPlans) {
  proposals_.search();
  finish();
  const sim::SearchResult expected =
      sim::search(scenario_of(session_.subject(), session_.state()), {});
  const std::vector<sim::Found> front = front_of(expected.pareto);
  ASSERT_EQ(proposals_.list().size(), front.size()) << proposals_.note().toStdString();
  for (size_t i = 0; i < front.size(); ++i) {
    const Proposal& shown = proposals_.list()[i];
    EXPECT_TRUE(shown.found);
    EXPECT_EQ(shown.step, front[i].outcome.figures.duration());
    EXPECT_EQ(shown.peak, front[i].outcome.peak_allocated);
    EXPECT_TRUE(shown.interval.has_value());
    for (const Proposal& other : proposals_.list()) {  // none is beaten
      EXPECT_TRUE(&other == &shown || other.step > shown.step || other.peak > shown.peak);
    }
  }
  proposals_.take(0);
  ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
  EXPECT_EQ(session_.current()->step(), proposals_.list()[0].step);
}

// Every plan that the search predicted, as `search` counts them; the front is what Advice lists.
TEST_F(ProposalsTest, TheSpaceHasAllPlansOfTheSearch) {
  proposals_.search();
  finish();
  const PlanSpace& space = proposals_.space();
  const sim::SearchResult expected =
      sim::search(scenario_of(session_.subject(), session_.state()), {});
  ASSERT_EQ(space.points.size(), expected.evaluated);
  std::vector<size_t> front;
  for (size_t i = 0; i < space.points.size(); ++i) {
    if (space.points[i].front) {
      front.push_back(i);
      ASSERT_TRUE(space.points[i].interval.has_value());
      EXPECT_LE(space.points[i].interval->low, space.points[i].step());
      EXPECT_GE(space.points[i].interval->high, space.points[i].step());
    } else {
      EXPECT_FALSE(space.points[i].interval.has_value());
    }
  }
  ASSERT_EQ(front.size(), proposals_.list().size());
  for (const size_t i : front) {
    EXPECT_TRUE(std::ranges::any_of(proposals_.list(), [&](const Proposal& each) {
      return each.step == space.points[i].step() && each.peak == space.points[i].peak;
    }));
  }
  // The emulated world of eight has meshes, units and prefetching to choose, and one precision.
  const std::vector<size_t> differing = differing_knobs(space, {});
  const auto differs = [&](const char* title) {
    return std::ranges::any_of(differing,
                               [&](size_t k) { return space_knobs()[k].title == title; });
  };
  EXPECT_TRUE(differs("Mesh"));
  EXPECT_TRUE(differs("Checkpoints"));
  EXPECT_FALSE(differs("Precision"));
  EXPECT_TRUE(differing_knobs(space, {front.front()}).empty());
  for (const size_t k : differing) {
    EXPECT_GE(values_of(space_knobs()[k], space).size(), 2U);
  }
  // Once taken, a point is a version with its step and its peak.
  const size_t last = space.points.size() - 1;
  const SpacePoint taken = space.points[last];
  proposals_.takePoint(last);
  ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
  EXPECT_EQ(session_.current()->step(), taken.step());
  EXPECT_EQ(session_.current()->peak(), taken.peak);
}

// On a GPU that is too small for most plans, those that fit are listed, and no others.
TEST_F(ProposalsTest, TheSearchKnowsTheMemoryOfTheGpu) {
  const QTemporaryDir directory;
  PlanState state = session_.state();
  state.machine = QString::fromStdString(small_gpu(directory.path().toStdString(), 64 << 20));
  session_.edit("a small GPU", state);
  ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
  const sim::Scenario scenario = scenario_of(session_.subject(), session_.state());
  const Bytes available = scenario.machine->target().available();
  proposals_.search();
  finish();
  ASSERT_FALSE(proposals_.list().empty()) << proposals_.note().toStdString();
  EXPECT_TRUE(proposals_.note().contains(
      QString("fits in %1 GiB").arg(static_cast<double>(available) / (1 << 30), 0, 'f', 1)))
      << proposals_.note().toStdString();
  const bool compared = session_.current()->hasStep();
  for (const Proposal& each : proposals_.list()) {
    EXPECT_TRUE(each.fits);
    EXPECT_EQ(each.compared, compared);
    EXPECT_LE(each.reserved, available);
    EXPECT_EQ(each.available, available);
    // Once taken, it is a version that fits, with the same peak.
    session_.edit(each.title, each.state);
    ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
    EXPECT_TRUE(session_.current()->hasStep());
    EXPECT_EQ(session_.current()->peak(), each.peak);
  }
}

// The collective that the advice hides most of.
TEST_F(ProposalsTest, TryingACollectiveTakesTheChangeThatHidesIt) {
  const std::string path = pytorch_run("fsdp1-post");
  const RunPointer run = open_run(path);
  session_.start(run, {path});
  ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
  QString result;
  QObject::connect(&proposals_, &PlanProposals::tried,
                   [&result](const QString& text) { result = text; });
  const sim::Advice advice = sim::advise(session_.recorded(), run->analysis);
  ASSERT_FALSE(advice.changes.empty());
  ASSERT_FALSE(advice.changes.front().hides.empty());
  const sim::HiddenTime& hidden = advice.changes.front().hides.front();
  const auto part = [&] {
    for (int i = 0; i < analysis::kUnitPartCount; ++i) {
      if (name_of(static_cast<analysis::UnitPart>(i)) == hidden.collective) {
        return static_cast<analysis::UnitPart>(i);
      }
    }
    return analysis::UnitPart::kOther;
  }();
  proposals_.tryFor(hidden.unit, part);
  finish();
  ASSERT_TRUE(wait_for([&] { return !result.isEmpty(); }));
  const PlanState tried = session_.state();
  EXPECT_NE(tried, own_state(session_.subject()));
  // No other change hides more of it.
  for (const sim::AdvisedChange& change : advice.changes) {
    for (const sim::HiddenTime& each : change.hides) {
      if (each.unit == hidden.unit && each.collective == hidden.collective) {
        const bool is_tried = change.plan == tried.plan;
        EXPECT_TRUE(is_tried || each.time <= hidden.time) << change.title;
      }
    }
  }
  // Nothing hides the calls of the optimizer.
  result.clear();
  proposals_.tryFor("<optimizer>", analysis::UnitPart::kOther);
  EXPECT_TRUE(result.startsWith("No change")) << result.toStdString();
  EXPECT_EQ(session_.state(), tried);
}

TEST_F(ProposalsTest, StopsAndForgetsWithTheRun) {
  proposals_.advise();
  proposals_.cancel();
  EXPECT_FALSE(proposals_.isBusy());
  EXPECT_EQ(proposals_.note(), "Stopped.");
  proposals_.search();
  finish();
  EXPECT_FALSE(proposals_.list().empty());
  session_.stop();
  EXPECT_TRUE(proposals_.list().empty());
  EXPECT_EQ(proposals_.note(), "");
  EXPECT_FALSE(proposals_.canAdvise());
}

}  // namespace
}  // namespace shardlens::gui
