#include <optional>
#include <set>
#include <string>

#include <QComboBox>
#include <QLabel>
#include <QScrollBar>
#include <QSpinBox>
#include <QStatusBar>
#include <QTest>
#include <QTreeView>
#include <QWheelEvent>

#include "gui/model/tables/ownership_table.h"
#include "gui/model/tables/unit_tree.h"
#include "gui/view/panel_parts/plan_form.h"
#include "gui/view/widgets/text_lines.h"
#include "tests/gui/view/mouse_window.h"
#include "tests/support/generated_run.h"

namespace shardlens::gui {
namespace {

// A click selects the row's unit. The rows stay where they are, so that a double click finds them.
TEST_F(MouseTest, AClickInOwnershipSelectsTheRowsUnit) {
  open(sample_run());
  QAbstractItemView& view = shown("ownership");
  OwnershipTable& table = window_->panels().model<OwnershipTable>();
  const int rows = table.rowCount();
  for (const int row : {rows - 1, 2}) {
    const QModelIndex index = table.index(row, 0);
    click(view, index);
    EXPECT_EQ(chosen().unit, table.unitAt(index));
    EXPECT_EQ(table.rowCount(), rows);
    ASSERT_EQ(view.selectionModel()->selectedRows().size(), 1);
    EXPECT_EQ(view.selectionModel()->selectedRows().front().row(), row);
  }
  // A unit that is selected elsewhere filters the table.
  const std::string other = "model.layers.3";
  ASSERT_NE(chosen().unit, other);
  window_->context().selectUnit(other);
  settle();
  EXPECT_LT(table.rowCount(), rows);
  EXPECT_TRUE(view.selectionModel()->selectedRows().isEmpty());
  EXPECT_EQ(table.unitAt(table.index(0, 0)), other);
  QTest::keyClick(window_.get(), Qt::Key_Escape);
  settle();
  EXPECT_EQ(table.rowCount(), rows);
}

// The boxes of the steps above the lanes are buttons.
TEST_F(MouseTest, AClickOnAStepSelectsItAndADoubleClickZoomsToIt) {
  open(sample_run());
  const RankData& rank = *window_->context().rank();
  const auto middle_of = [&](size_t step) {
    const analysis::Interval shown =
        window_->context().run()->shown(rank, rank.figures.steps[step].window);
    return QPoint(static_cast<int>(scene().axis.toPixel(shown.start + shown.length() / 2) +
                                   TimelineScene::kGutter),
                  static_cast<int>(TimelineScene::kHeader) - 8);
  };
  QTest::mouseMove(canvas(), middle_of(2));
  EXPECT_EQ(canvas()->cursor().shape(), Qt::PointingHandCursor);
  const auto said = [this] {
    QStringList texts;
    for (const QLabel* label : window_->statusBar()->findChildren<QLabel*>()) {
      texts.append(label->text());
    }
    return texts.join(' ');
  };
  EXPECT_TRUE(said().contains("a click selects it")) << said().toStdString();
  QEvent leave(QEvent::Leave);
  QApplication::sendEvent(canvas(), &leave);
  EXPECT_FALSE(said().contains("a click selects it")) << said().toStdString();
  QTest::mouseClick(canvas(), Qt::LeftButton, {}, middle_of(2));
  EXPECT_EQ(chosen().step, 2);
  QTest::mouseClick(canvas(), Qt::LeftButton, {}, middle_of(1));
  EXPECT_EQ(chosen().step, 1);
  QTest::mouseClick(canvas(), Qt::LeftButton, {}, middle_of(1));
  EXPECT_FALSE(chosen().step);  // a second click selects all steps again
  const analysis::Interval wanted =
      window_->context().run()->shown(rank, rank.figures.steps[1].window);
  const QPoint where = middle_of(1);
  QTest::mouseClick(canvas(), Qt::LeftButton, {}, where);
  QTest::mouseDClick(canvas(), Qt::LeftButton, {}, where);
  QTest::mouseRelease(canvas(), Qt::LeftButton, {}, where);
  EXPECT_EQ(chosen().step, 1);
  EXPECT_NEAR(static_cast<double>(scene().axis.view().length()),
              1.2 * static_cast<double>(wanted.length()), 2);
}

// Qt makes the second of two quick clicks a double click.
TEST_F(MouseTest, QuickClicksOnARanksNameFoldAndUnfoldIt) {
  open(sample_run());
  const QPoint name = on(TimelineLayout::Band::Kind::kRank, 0, 30);
  QTest::mouseClick(canvas(), Qt::LeftButton, {}, name);
  EXPECT_EQ(scene().collapsed(), std::set<size_t>{0});
  QTest::mouseDClick(canvas(), Qt::LeftButton, {}, name);
  QTest::mouseRelease(canvas(), Qt::LeftButton, {}, name);
  EXPECT_TRUE(scene().collapsed().empty());
}

// A click on the lanes of another run selects the item's unit; a double click zooms to the item.
TEST_F(MouseTest, AClickOnTheOtherRunSelectsTheUnit) {
  open(sample_run());
  window_->session().simulateNow();
  ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
  window_->actions().trigger("plan.simulate");
  ASSERT_NE(scene().ghost().run, nullptr);
  const RankData& other = scene().ghost().data();
  window_->actions().trigger("plan.fit");
  const auto unit_at = [&](const QPoint& where) -> std::optional<std::string> {
    const TimelineScene::Hit hit = scene().hit(where.x(), where.y());
    return hit.item && hit.ghost ? unit_of(other, *hit.item) : std::nullopt;
  };
  for (const TimelineLayout::Band& band : scene().layout().bands) {
    if (band.kind == TimelineLayout::Band::Kind::kGhostLane && band.label == "all-gather") {
      window_->timeline().scrollBy(1'000'000);
      const int y =
          static_cast<int>(TimelineScene::kHeader + band.top + band.height / 2 - scene().scroll);
      for (int x = static_cast<int>(TimelineScene::kGutter); x < canvas()->width(); x += 3) {
        if (unit_at({x, y}) == "model.layers.3") {
          QTest::mouseClick(canvas(), Qt::LeftButton, {}, {x, y});
          EXPECT_EQ(chosen().unit, "model.layers.3");
          EXPECT_FALSE(chosen().item);
          const Nanoseconds before = scene().axis.view().length();
          QTest::mouseDClick(canvas(), Qt::LeftButton, {}, {x, y});
          EXPECT_LT(scene().axis.view().length(), before / 4);
          return;
        }
      }
    }
  }
  FAIL() << "no all-gather of the unit in the simulated lanes";
}

// A row that only groups others is folded by a double click; the timeline stays where it is.
TEST_F(MouseTest, ADoubleClickOnAGroupLeavesTheTimelineAlone) {
  open(sample_run());
  auto& view = static_cast<QTreeView&>(shown("modules"));
  const QModelIndex group = window_->panels().model<UnitTree>().indexOf("model.layers.3").parent();
  ASSERT_FALSE(view.isExpanded(group));
  window_->timeline().zoomBy(0.25);
  const analysis::Interval seen = scene().axis.view();
  double_click(view, group);
  EXPECT_TRUE(view.isExpanded(group));
  EXPECT_EQ(scene().axis.view(), seen);
}

// The form scrolls; what is under the pointer keeps its value.
TEST_F(MouseTest, TheWheelDoesNotEditThePlan) {
  open(sample_run());
  window_->session().simulateNow();
  ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
  shown("whatif");
  auto& form = *window_->findChild<PlanForm*>();
  const PlanState before = window_->session().state();
  ASSERT_GT(form.verticalScrollBar()->maximum(), 0);
  for (QWidget* box : form.findChildren<QWidget*>()) {
    if (qobject_cast<QComboBox*>(box) != nullptr || qobject_cast<QSpinBox*>(box) != nullptr) {
      for (const int notch : {-120, 120, -120}) {
        const QPointF middle = box->rect().center();
        QWheelEvent event(middle, box->mapToGlobal(middle), {}, {0, notch}, Qt::NoButton, {},
                          Qt::NoScrollPhase, false);
        QSpontaneKeyEvent::setSpontaneous(&event);  // only these go on to the parent
        qApp->notify(box, &event);
      }
    }
  }
  EXPECT_EQ(window_->session().state(), before);
  EXPECT_EQ(window_->session().undoStack().count(), 0);
  EXPECT_GT(form.verticalScrollBar()->value(), 0);
}

// Names of 300 characters are elided or broken; they do not widen the window.
TEST_F(MouseTest, LongNamesDoNotWidenTheWindow) {
  test::GeneratedRun generated;
  generated.layers = 3;
  generated.steps = 1;
  generated.layer_name = "layers.{}." + std::string(280, 'x') + ".attention";
  open(write_run(generated.run().traces, "run"));
  const int width = window_->width();
  const std::string unit = window_->context().rank()->owner_of(2);
  ASSERT_GT(unit.size(), 290);
  window_->context().selectUnit(unit);
  QTest::keyClick(window_.get(), Qt::Key_E);
  for (const Panels::Docked& docked : window_->panels().all()) {
    shown(docked.dock->objectName());
    EXPECT_LE(window_->minimumSizeHint().width(), 1280) << docked.dock->objectName().toStdString();
  }
  window_->timeline().fitAll();
  for (int y = 80; y < canvas()->height(); y += 20) {
    for (int x = 150; x < canvas()->width(); x += 200) {
      QTest::mouseMove(canvas(), {x, y});
    }
  }
  QApplication::processEvents();
  EXPECT_EQ(window_->width(), width);
  EXPECT_LE(window_->minimumSizeHint().width(), 1280);
}

// At 1920x1080 every column of the sample run is seen without scrolling.
TEST_F(MouseTest, ColumnsFitALargeWindow) {
  window_->resize(1920, 1080);
  open(sample_run());
  window_->session().simulateNow();
  ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
  for (const char* panel : {"modules", "exposed", "order", "events", "diagnostics", "whatif"}) {
    QApplication::processEvents();
    EXPECT_EQ(shown(panel).horizontalScrollBar()->maximum(), 0) << panel;
  }
}

TEST(TextLinesTest, LongLinesAreBrokenAtSeparators) {
  EXPECT_EQ(in_lines(""), "");
  EXPECT_EQ(in_lines("short\nlines"), "short\nlines");
  const QString words = QString("twelve chars").repeated(1) + QString(" ten chars").repeated(12);
  for (const QString& line : in_lines(words).split('\n')) {
    EXPECT_LE(line.size(), 100);
    EXPECT_FALSE(line.startsWith(' '));
  }
  EXPECT_EQ(in_lines(words).replace('\n', ' '), words);
  const QString name = "model." + QString("layer_").repeated(20) + QString(250, 'x');
  QString joined;
  for (const QString& line : in_lines(name).split('\n')) {
    EXPECT_LE(line.size(), 100);
    joined += line;
  }
  EXPECT_EQ(joined, name);
  EXPECT_TRUE(in_lines(name).section('\n', 0, 0).endsWith('_'));
}

}  // namespace
}  // namespace shardlens::gui
