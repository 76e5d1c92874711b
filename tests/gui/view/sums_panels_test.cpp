// The panels that sum up what ran: events by name, memory as a treemap, operators under the
// roofline.
#include <algorithm>

#include <QComboBox>
#include <QLabel>
#include <QTableView>

#include "gui/model/tables/event_groups.h"
#include "gui/model/tables/event_table.h"
#include "gui/model/tables/roofline_table.h"
#include "gui/view/panel_parts/memory_plot.h"
#include "gui/view/panel_parts/memory_treemap.h"
#include "gui/view/panel_parts/roofline_plot.h"
#include "tests/gui/view/mouse_window.h"
#include "tests/support/generated_run.h"

namespace shardlens::gui {
namespace {

class SumsPanelsTest : public MouseTest {
 protected:
  Panel& panel(const QString& id) { return *window_->panels().find(id).panel; }
  QComboBox& list(const QString& id, const QString& name) {
    for (QComboBox* box : panel(id).findChildren<QComboBox*>()) {
      if (box->accessibleName() == name) {
        return *box;
      }
    }
    throw std::runtime_error("no such list");
  }
  void simulate() {
    ASSERT_TRUE(wait_for([&] { return !window_->session().isObserving(); }));
    window_->session().simulateNow();
    ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
    window_->panels().flush();
  }
};

TEST_F(SumsPanelsTest, KernelsByName) {
  test::GeneratedRun generated;
  generated.ranks = 2;
  generated.steps = 3;
  open(write_run(generated.run().traces, "run"));
  shown("events");
  QComboBox& how = list("events", "What a row is");
  QComboBox& categories = list("events", "Category of the events");
  ASSERT_GE(categories.findData("kernel"), 0);
  categories.setCurrentIndex(categories.findData("kernel"));
  how.setCurrentIndex(1);
  settle();
  auto& groups = window_->panels().model<EventGroups>();
  ASSERT_GT(groups.rowCount(), 2);
  EXPECT_EQ(panel("events").view()->model(), &groups);
  click(*panel("events").view(), groups.index(1, 0));
  EXPECT_EQ(chosen().item, groups.groupAt(groups.index(1, 0)).longest);
  // A step has fewer events; without events there are no groups.
  const int64_t all = groups.count();
  window_->context().selectStep(1);
  window_->panels().flush();
  EXPECT_LT(groups.count(), all);
  EXPECT_GT(groups.count(), 0);
  panel("events").search()->setText("no kernel is called this");
  window_->panels().flush();
  EXPECT_EQ(groups.rowCount(), 0);
  // F3 goes through the events themselves.
  panel("events").search()->setText("nccl");
  window_->panels().flush();
  window_->actions().trigger("go.nextFound");
  settle();
  EXPECT_EQ(how.currentIndex(), 0);
  ASSERT_TRUE(chosen().item);
  const trace::Trace& trace = window_->context().rank()->trace;
  EXPECT_TRUE(trace.name(trace.events[chosen().item->ref]).starts_with("nccl"));
  EXPECT_EQ(trace.events[chosen().item->ref].category, trace::Category::kKernel);
}

// The timeline's pointer moves the treemap through the step, a click in it selects the unit
// everywhere, and a unit that is selected in the tree is framed.
TEST_F(SumsPanelsTest, TheTreemapFollowsTheTimelineAndTheTree) {
  open(sample_run());
  shown("memory");
  simulate();
  auto& treemap = *panel("memory").findChild<MemoryTreemap*>();
  list("memory", "How the parts of the memory are shown").setCurrentIndex(1);
  settle();
  ASSERT_TRUE(treemap.isVisible());
  const PlanVersion& version = *window_->session().current();
  const sim::MemoryCurve& curve = version.memory;
  EXPECT_EQ(treemap.time(), curve.points[curve.peak].time);
  EXPECT_EQ(treemap.map().sum, version.peak());

  const RankData& rank = *window_->context().rank();
  const Nanoseconds since = curve.end / 10;
  const Nanoseconds own = rank.figures.steps[1].window.start + since;
  window_->panels().showCursor(window_->context().run()->shown(rank, {own, own}).start);
  EXPECT_EQ(treemap.time(), since);
  EXPECT_GE(treemap.map().sum, curve.at(since).sum());
  EXPECT_LT(treemap.map().sum, version.peak());
  window_->panels().showCursor(std::nullopt);
  EXPECT_EQ(treemap.map().sum, version.peak());
  // The pointer in the plot next to it does so too.
  auto& plot = *panel("memory").findChild<MemoryPlot*>();
  QTest::mouseMove(&plot, QPoint(plot.width() / 4, plot.height() / 2));
  EXPECT_LT(treemap.time(), curve.points[curve.peak].time);
  QEvent leave(QEvent::Leave);
  QApplication::sendEvent(&plot, &leave);

  const auto tile = std::ranges::find_if(treemap.map().tiles, [](const MemoryMap::Tile& each) {
    return each.unit == "model.layers.2" && each.area.width() > 2 && each.area.height() > 2;
  });
  ASSERT_NE(tile, treemap.map().tiles.end());
  QTest::mouseClick(&treemap, Qt::LeftButton, {}, tile->area.center().toPoint());
  settle();
  EXPECT_EQ(chosen().unit, "model.layers.2");
  EXPECT_TRUE(treemap.textAt(tile->area.center()).startsWith("model.layers.2, "));
  const std::string before = *chosen().unit;
  QTest::keyClick(&treemap, Qt::Key_Right);
  settle();
  EXPECT_NE(chosen().unit, before);
  // An item of the step: what was held when it began.
  window_->context().clear();
  QTest::keyClick(window_.get(), Qt::Key_E);
  settle();
  ASSERT_TRUE(chosen().item);
  const Nanoseconds start = interval_of(rank, *chosen().item).start;
  const auto step = rank.step_at(start);
  ASSERT_TRUE(step);
  EXPECT_EQ(treemap.time(), std::min(curve.end, start - rank.figures.steps[*step].window.start));
}

TEST_F(SumsPanelsTest, ADotOfTheRooflineIsItsRow) {
  window_->openModel(QString::fromStdString(sample_run() + "/config.json"), "8xH100");
  ASSERT_TRUE(wait_for([&] {
    return window_->context().run() != nullptr && window_->session().current() != nullptr;
  }));
  QAbstractItemView& view = shown("roofline");
  auto& table = window_->panels().model<RooflineTable>();
  ASSERT_GT(table.rows().size(), 3);
  auto& plot = *panel("roofline").findChild<RooflinePlot*>();
  const auto row = std::ranges::find_if(
      table.rows(), [](const RooflineTable::Row& each) { return each.unit == "model.layers.1"; });
  ASSERT_NE(row, table.rows().end());
  click(view, table.indexOf(static_cast<size_t>(row - table.rows().begin())));
  EXPECT_EQ(chosen().unit, "model.layers.1");
  window_->context().clear();
  settle();
  const QPointF place = plot.placeOf(static_cast<size_t>(row - table.rows().begin()));
  ASSERT_TRUE(QRectF(plot.rect()).contains(place));
  const auto hit = plot.rowAt(place);  // blocks alike are at one place
  ASSERT_TRUE(hit);
  QTest::mouseClick(&plot, Qt::LeftButton, {}, place.toPoint());
  settle();
  EXPECT_EQ(chosen().unit, table.rows()[*hit].unit);
  // A unit that is selected elsewhere is marked.
  window_->context().selectUnit("model.layers.0");
  window_->panels().flush();
  ASSERT_EQ(view.selectionModel()->selectedRows().size(), 1);
  EXPECT_EQ(table.rowOf(view.selectionModel()->selectedRows().front()).unit, "model.layers.0");
  EXPECT_EQ(chosen().unit, "model.layers.0");
}

TEST_F(SumsPanelsTest, ATitleOfTheRooflineIsNotARow) {
  window_->openModel(QString::fromStdString(sample_run() + "/config.json"), "8xH100");
  ASSERT_TRUE(wait_for([&] {
    return window_->context().run() != nullptr && window_->session().current() != nullptr;
  }));
  QAbstractItemView& view = shown("roofline");
  const QModelIndex title = view.model()->index(0, 0);
  ASSERT_FALSE(title.flags() & Qt::ItemIsSelectable) << title.data().toString().toStdString();
  click(view, title);
  double_click(view, title);
  EXPECT_FALSE(chosen().unit);
}

}  // namespace
}  // namespace shardlens::gui
