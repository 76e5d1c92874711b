#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include <QClipboard>
#include <QContextMenuEvent>
#include <QDockWidget>
#include <QInputDialog>
#include <QMenu>
#include <QMenuBar>
#include <QTableView>
#include <QTest>
#include <QTextBrowser>
#include <QToolButton>
#include <QTreeView>

#include "gui/model/base/time_axis.h"
#include "gui/model/details/inspected.h"
#include "gui/model/tables/diagnostic_table.h"
#include "gui/model/tables/event_table.h"
#include "gui/model/tables/exposed_table.h"
#include "gui/model/tables/order_table.h"
#include "gui/model/tables/ownership_table.h"
#include "gui/model/tables/unit_tree.h"
#include "gui/view/panel_parts/memory_plot.h"
#include "gui/view/panels/compare_panel.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/headline_strip.h"
#include "gui/view/widgets/notice_bar.h"
#include "tests/gui/view/mouse_window.h"

namespace shardlens::gui {
namespace {

TEST_F(MouseTest, ARanksNameFoldsAndUnfoldsIt) {
  open(sample_run());
  ASSERT_TRUE(scene().collapsed().empty());
  const QPoint name = on(TimelineLayout::Band::Kind::kRank, 0, 30);
  QTest::mouseClick(canvas(), Qt::LeftButton, {}, name);
  settle();
  EXPECT_EQ(scene().collapsed(), std::set<size_t>{0});
  EXPECT_EQ(chosen().rank, 0);
  window_->grab();
  QTest::mouseClick(canvas(), Qt::LeftButton, {}, name);
  settle();
  EXPECT_TRUE(scene().collapsed().empty());
}

TEST_F(MouseTest, EveryRankOfSeveralIsFoldedAndChosen) {
  open(pytorch_run("fsdp2-default"));
  const size_t ranks = window_->context().run()->ranks.size();
  ASSERT_GE(ranks, 2);
  for (size_t round = 0; round < 2; ++round) {
    for (size_t rank = 0; rank < ranks; ++rank) {
      const bool was = scene().collapsed().contains(rank);
      QTest::mouseClick(canvas(), Qt::LeftButton, {},
                        on(TimelineLayout::Band::Kind::kRank, rank, 30));
      settle();
      EXPECT_EQ(scene().collapsed().contains(rank), !was);
      EXPECT_EQ(chosen().rank, rank);
      window_->grab();
    }
  }
}

TEST_F(MouseTest, AClickInModulesSelectsAndADoubleClickGoesThere) {
  open(sample_run());
  QAbstractItemView& view = shown("modules");
  UnitTree& tree = window_->panels().model<UnitTree>();
  for (const std::string unit : {"model.layers.3", "", "<optimizer>"}) {
    const QModelIndex row = tree.indexOf(unit);
    ASSERT_TRUE(row.isValid()) << unit;
    click(view, row);
    EXPECT_EQ(chosen().unit, unit);
    EXPECT_EQ(view.currentIndex().siblingAtColumn(0), row);
  }
  const QModelIndex row = tree.indexOf("model.layers.3");
  double_click(view, row);
  EXPECT_EQ(chosen().unit, "model.layers.3");
  const analysis::Interval seen = scene().axis.view();
  EXPECT_LT(seen.length(), scene().axis.bounds().length());
  const auto where = scene().unitInterval(window_->context().rank()->figures.steps[0].window);
  ASSERT_TRUE(where);
  EXPECT_LE(seen.start, where->start);
  EXPECT_GE(seen.end, where->end);
  // A click on the current row selects its unit again.
  window_->context().clear();
  settle();
  click(view, row);
  EXPECT_EQ(chosen().unit, "model.layers.3");
}

TEST_F(MouseTest, AClickInATableSelectsAndADoubleClickGoesThere) {
  open(sample_run());
  const auto goes_there = [this](QAbstractItemView& view, int row) {
    window_->timeline().fitAll();
    double_click(view, view.model()->index(row, 0));
    const auto where = window_->context().itemInterval();
    ASSERT_TRUE(where);
    EXPECT_LE(scene().axis.view().start, where->start);
    EXPECT_NEAR(static_cast<double>(scene().axis.view().length()),
                std::max(200.0, 1.2 * static_cast<double>(where->length())), 102);
  };
  QAbstractItemView& exposed = shown("exposed");
  for (const int row : {2, 0, 1}) {
    click(exposed, exposed.model()->index(row, 1));
    EXPECT_EQ(chosen().item,
              window_->panels().model<ExposedTable>().itemAt(exposed.model()->index(row, 0)));
  }
  goes_there(exposed, 2);
  // The table stays sorted when the selection changes.
  window_->panels().model<ExposedTable>().sort(0, Qt::AscendingOrder);
  const QVariant first = exposed.model()->index(0, 0).data();
  window_->context().selectStep(1);
  settle();
  EXPECT_LE(first.toString(), exposed.model()->index(1, 0).data().toString());
  for (int row = 1; row < exposed.model()->rowCount(); ++row) {
    EXPECT_LE(exposed.model()->index(row - 1, 0).data().toString(),
              exposed.model()->index(row, 0).data().toString());
  }
  QAbstractItemView& order = shown("order");
  click(order, order.model()->index(1, 2));
  ASSERT_TRUE(chosen().item);
  EXPECT_EQ(chosen().unit,
            window_->panels().model<OrderTable>().unitAt(order.model()->index(1, 0)));
  goes_there(order, 3);
  QAbstractItemView& events = shown("events");
  ASSERT_GT(events.model()->rowCount(), 10);
  click(events, events.model()->index(7, 2));
  EXPECT_EQ(chosen().item, (Selection::Item{0, Lane::Source::kEvents,
                                            window_->panels().model<EventTable>().eventAt(
                                                events.model()->index(7, 0))}));
  goes_there(events, 5);
}

// Tables highlight only what is selected.
TEST_F(MouseTest, TablesLetGoOfWhatIsNoLongerSelected) {
  open(sample_run());
  QAbstractItemView& exposed = shown("exposed");
  click(exposed, exposed.model()->index(1, 0));
  EXPECT_EQ(exposed.selectionModel()->selectedRows().size(), 1);
  QTest::keyClick(window_.get(), Qt::Key_Escape);
  settle();
  EXPECT_TRUE(exposed.selectionModel()->selectedRows().isEmpty());
  EXPECT_FALSE(chosen().item);
}

TEST_F(MouseTest, AClickOnAChangeSelectsItsUnit) {
  open(pytorch_run("fsdp2-prefetch"));
  bool settled = false;
  QObject::connect(window_.get(), &MainWindow::settled, [&] { settled = true; });
  window_->compareWith({QString::fromStdString(pytorch_run("fsdp2-no-reshard"))});
  ASSERT_TRUE(wait_for([&] { return settled; }));
  ComparePanel& panel = window_->panels().get<ComparePanel>();
  panel.by().setCurrentIndex(static_cast<int>(ComparisonTree::By::kUnit));
  QApplication::processEvents();
  const QModelIndex row = panel.tree.index(0, 0);
  ASSERT_TRUE(panel.tree.unitAt(row));
  click(*panel.view(), row);
  EXPECT_EQ(chosen().unit, panel.tree.unitAt(row));
}

// Menus and shortcuts are enabled by the current state, whether or not a menu was opened.
TEST_F(MouseTest, WhatIsEnabledFollowsWhatIsPossible) {
  const auto expect_in_step = [this](const char* when) {
    int entries = 0;
    for (QMenu* menu : window_->menuBar()->findChildren<QMenu*>()) {
      for (QAction* action : menu->actions()) {
        if (const Command* command = window_->actions().find(action->objectName())) {
          EXPECT_EQ(action->isEnabled(), command->enabled())
              << when << ": " << command->id.toStdString();
          EXPECT_FALSE(action->toolTip().isEmpty());
          EXPECT_TRUE(action->isEnabled() || action->toolTip() == command->needs);
          ++entries;
        }
      }
    }
    EXPECT_EQ(entries, static_cast<int>(window_->actions().commands().size())) << when;
  };
  const auto open_menus = [this] {
    for (QAction* menu : window_->menuBar()->actions()) {
      menu->menu()->popup({10, 10});
      QApplication::processEvents();
      menu->menu()->close();
    }
  };
  open_menus();
  expect_in_step("without a run");
  open(sample_run());
  expect_in_step("with a run");
  // A menu that was opened while undo was disabled must not keep it disabled.
  open_menus();
  QTest::keyClick(window_.get(), Qt::Key_E);
  EXPECT_TRUE(chosen().item);
  expect_in_step("with a selection");
  window_->session().simulateNow();
  ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
  open_menus();
  const plan::Plan before = window_->session().state().plan;
  window_->session().choose(2, 2);
  expect_in_step("with an edit");
  QTest::keyClick(window_.get(), Qt::Key_Z, Qt::ControlModifier);
  EXPECT_EQ(window_->session().state().plan, before);
  expect_in_step("with the edit undone");
  QTest::keyClick(window_.get(), Qt::Key_Y, Qt::ControlModifier);
  EXPECT_NE(window_->session().state().plan, before);
  QTest::keyClick(window_.get(), Qt::Key_Escape);
  expect_in_step("with nothing selected");
  open(pytorch_run("fsdp2-default"));
  expect_in_step("with a run without a plan");
}

TEST_F(MouseTest, ArrowKeysFoldTrees) {
  open(sample_run());
  auto& view = static_cast<QTreeView&>(shown("modules"));
  const QModelIndex fold = window_->panels().model<UnitTree>().indexOf("model.layers.3").parent();
  click(view, fold);
  ASSERT_FALSE(view.isExpanded(fold));
  view.setFocus();
  QTest::keyClick(&view, Qt::Key_Right);
  EXPECT_TRUE(view.isExpanded(fold));
  QTest::keyClick(&view, Qt::Key_Left);
  EXPECT_FALSE(view.isExpanded(fold));
  // In the timeline they move along the row.
  window_->timeline().setFocus();
  QTest::keyClick(window_.get(), Qt::Key_E);
  const auto first = chosen().item;
  QTest::keyClick(&window_->timeline(), Qt::Key_Right);
  EXPECT_NE(chosen().item, first);
  QTest::keyClick(&window_->timeline(), Qt::Key_Left);
  EXPECT_EQ(chosen().item, first);
}

TEST_F(MouseTest, ABookmarkIsSetUnderThePointerAndKeepsItsNote) {
  open(sample_run());
  window_->context().selectRange(analysis::Interval{1'000'000, 2'000'000});
  const QPoint pointer(700, 200);
  QTest::mouseMove(canvas(), pointer - QPoint(5, 0));
  QTest::mouseMove(canvas(), pointer);
  const Nanoseconds under = scene().axis.toTime(700 - TimelineScene::kGutter);
  QTest::keyClick(window_.get(), Qt::Key_M);
  ASSERT_EQ(scene().bookmarks.size(), 1);
  EXPECT_EQ(scene().bookmarks[0].time, under);
  const auto ask = [this, pointer](const char* text) {
    QTest::mouseMove(canvas(), pointer - QPoint(3, 0));
    QTest::mouseMove(canvas(), pointer);  // the dialog took the pointer
    window_->actions().trigger("go.note");
    QApplication::processEvents();
    auto* dialog = window_->findChild<QInputDialog*>();
    ASSERT_NE(dialog, nullptr);
    if (text != nullptr) {
      dialog->setTextValue(text);
      dialog->accept();
    } else {
      EXPECT_EQ(dialog->textValue(), "late here");  // the existing note is edited
      dialog->reject();
    }
    QTest::qWait(1);
    QApplication::sendPostedEvents(nullptr, QEvent::DeferredDelete);
  };
  ask("late here");
  ASSERT_EQ(scene().bookmarks.size(), 1);
  EXPECT_EQ(scene().bookmarks[0].note, "late here");
  EXPECT_EQ(scene().bookmarks[0].time, under);
  ask(nullptr);
  ASSERT_EQ(scene().bookmarks.size(), 1);
  EXPECT_EQ(scene().bookmarks[0].note, "late here");
  ask("and why");
  EXPECT_EQ(scene().bookmarks[0].note, "and why");
}

// The right button selects the item under the pointer and opens a menu of actions for it.
TEST_F(MouseTest, ContextMenusOfferWhatCanBeDone) {
  open(sample_run());
  const auto menu = [this]() -> QMenu* {
    QApplication::processEvents();
    return window_->findChild<QMenu*>("context");
  };
  const auto entry = [](QMenu& of, const QString& begin) -> QAction* {
    for (QAction* action : of.actions()) {
      if (action->text().startsWith(begin)) {
        return action;
      }
    }
    return nullptr;
  };
  const auto done = [](QMenu* of) {
    of->close();
    QApplication::sendPostedEvents(nullptr, QEvent::DeferredDelete);
  };
  QAbstractItemView& exposed = shown("exposed");
  const auto press = [](QWidget* where, const QPoint& at) {
    QTest::mouseClick(where, Qt::RightButton, {}, at);
    QContextMenuEvent event(QContextMenuEvent::Mouse, at, where->mapToGlobal(at));
    QApplication::sendEvent(where, &event);
  };
  const QModelIndex second = exposed.model()->index(1, 0);
  press(exposed.viewport(), at(exposed, second));
  QMenu* shown_menu = menu();
  ASSERT_NE(shown_menu, nullptr);
  EXPECT_EQ(chosen().item, window_->panels().model<ExposedTable>().itemAt(second));
  ASSERT_NE(entry(*shown_menu, "Copy"), nullptr);
  entry(*shown_menu, "Copy")->trigger();
  EXPECT_TRUE(QApplication::clipboard()->text().startsWith(second.data().toString() + "\t"));
  entry(*shown_menu, "Bookmark here")->trigger();
  ASSERT_EQ(scene().bookmarks.size(), 1);
  EXPECT_EQ(scene().bookmarks[0].time, window_->context().itemInterval()->start);
  entry(*shown_menu, "Go to it")->trigger();
  EXPECT_LT(scene().axis.view().length(), scene().axis.bounds().length());
  done(shown_menu);

  window_->timeline().fitAll();
  window_->context().clear();
  const analysis::Interval shown_first = window_->context().run()->shown(
      *window_->context().rank(), window_->context().rank()->timeline.collectives[0].when);
  for (const TimelineLayout::Band& band : scene().layout().bands) {
    if (band.kind == TimelineLayout::Band::Kind::kLane && band.label == "all-gather") {
      const double x =
          (scene().axis.toPixel(shown_first.start) + scene().axis.toPixel(shown_first.end)) / 2;
      press(canvas(), {static_cast<int>(x + TimelineScene::kGutter),
                       static_cast<int>(TimelineScene::kHeader + band.top + band.height / 2)});
    }
  }
  shown_menu = menu();
  ASSERT_NE(shown_menu, nullptr);
  ASSERT_TRUE(chosen().item);
  EXPECT_EQ(chosen().item->ref, 0);
  ASSERT_NE(entry(*shown_menu, "Select unit"), nullptr);
  entry(*shown_menu, "Select unit")->trigger();
  EXPECT_FALSE(chosen().item);
  EXPECT_TRUE(chosen().unit);
  done(shown_menu);

  press(canvas(), on(TimelineLayout::Band::Kind::kRank, 0, 30));
  shown_menu = menu();
  ASSERT_NE(shown_menu, nullptr);
  entry(*shown_menu, "Fold the rank")->trigger();
  EXPECT_EQ(scene().collapsed(), std::set<size_t>{0});
  done(shown_menu);
}

TEST_F(MouseTest, WhatWasOpenedBeforeIsInTheMenu) {
  open(pytorch_run("fsdp2-default"));
  open(sample_run());
  QMenu* recent = nullptr;
  for (QMenu* menu : window_->findChildren<QMenu*>()) {
    recent = menu->title() == "Open recent" ? menu : recent;
  }
  ASSERT_NE(recent, nullptr);
  ASSERT_EQ(recent->actions().size(), 4);  // two runs, a separator, "Clear this list"
  bool settled = false;
  QObject::connect(window_.get(), &MainWindow::settled, [&] { settled = true; });
  recent->actions()[1]->trigger();
  ASSERT_TRUE(wait_for([&] { return settled; }));
  EXPECT_TRUE(window_->windowTitle().startsWith("fsdp2-default"));
  recent->actions().back()->trigger();
  QApplication::processEvents();
  EXPECT_TRUE(settings_->value("recent").toStringList().isEmpty());
  EXPECT_FALSE(recent->isEnabled());
}

// Cancelling the load of another run keeps the open run; bookmarks are stored under its own path.
TEST_F(MouseTest, AReadingThatIsGivenUpLeavesTheRunAsItWas) {
  open(sample_run());
  window_->open({QString::fromStdString(pytorch_run("fsdp2-default"))});
  window_->loader().cancel();
  QApplication::processEvents();
  EXPECT_TRUE(window_->timeline().isVisible());
  window_->timeline().setBookmark(5'000'000, "mine");
  open(sample_run());
  ASSERT_EQ(scene().bookmarks.size(), 1);
  EXPECT_EQ(scene().bookmarks[0].note, "mine");
}

// The line in the memory plot is at the same time of the step as the timeline's pointer.
TEST_F(MouseTest, TheMemoryPlotHasTheTimelinesCursor) {
  window_->openModel(QString::fromStdString(sample_run() + "/config.json"), "8xH100");
  ASSERT_TRUE(wait_for([&] {
    return window_->context().run() != nullptr && window_->session().current() != nullptr;
  }));
  settle();
  const auto& plot = *window_->findChild<MemoryPlot*>();
  EXPECT_FALSE(plot.cursorTime());
  const int x = canvas()->width() / 2;
  QTest::mouseMove(canvas(), {x, 200});
  QApplication::processEvents();
  ASSERT_TRUE(plot.cursorTime());
  const RankData& rank = *window_->context().rank();
  const analysis::Interval step =
      window_->context().run()->shown(rank, rank.figures.steps.front().window);
  EXPECT_EQ(*plot.cursorTime(), scene().axis.toTime(x - TimelineScene::kGutter) - step.start);
}

// A simulated step time is the same text everywhere and is marked as simulated.
TEST_F(MouseTest, ASimulatedStepIsTheSameEverywhere) {
  bool settled = false;
  QObject::connect(window_.get(), &MainWindow::settled, [&] { settled = true; });
  window_->openModel(QString::fromStdString(sample_run() + "/config.json"), "8xH100");
  ASSERT_TRUE(wait_for([&] { return settled && window_->context().run() != nullptr; }));
  const QString step = durationText(window_->session().current()->step());
  window_->context().selectStep(0);
  settle();
  EXPECT_TRUE(window_->headline().bar().text().startsWith("simulated step " + step + " = "))
      << window_->headline().bar().text().toStdString();
  const QAbstractItemView& versions = *window_->panels().find("whatif").panel->view();
  EXPECT_EQ(versions.model()->index(0, 2).data().toString(), step);
  EXPECT_TRUE(window_->windowTitle().contains("simulated"));
  EXPECT_TRUE(window_->notice().isVisible());
  EXPECT_TRUE(window_->notice().text().contains("Simulated"));
  EXPECT_TRUE(inspected(window_->context()).isEmpty() || window_->panels()
                                                             .find("inspector")
                                                             .panel->findChild<QTextBrowser*>()
                                                             ->toPlainText()
                                                             .contains("simulated"));
  // With a run open, the lanes of its simulated plan show the same number as the table.
  open(sample_run());
  EXPECT_FALSE(window_->notice().isVisible());
  window_->session().simulateNow();
  ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
  window_->actions().trigger("plan.simulate");
  EXPECT_TRUE(scene().ghost().note.contains(durationText(window_->session().current()->step())));
  EXPECT_EQ(versions.model()->index(0, 2).data().toString(),
            durationText(window_->session().current()->step()));
}

TEST_F(MouseTest, ABrokenPlanAndAnEmptyTraceAreSaidInTheWindow) {
  const std::filesystem::path directory = folder_.path().toStdString() + "/run";
  std::filesystem::copy(sample_run(), directory);
  open(directory.string());
  EXPECT_FALSE(window_->notice().isVisible());
  std::ofstream(directory / "plan.json") << "{\"shardlens_plan\": ";
  open(directory.string());
  const auto said_everywhere = [this](const QString& what) {
    EXPECT_TRUE(window_->notice().isVisible());
    EXPECT_TRUE(window_->notice().text().contains(what)) << window_->notice().text().toStdString();
    int rows = 0;
    for (int row = 0; row < window_->panels().model<DiagnosticTable>().rowCount(); ++row) {
      rows +=
          window_->panels().model<DiagnosticTable>().index(row, 2).data().toString().contains(what)
              ? 1
              : 0;
    }
    EXPECT_EQ(rows, 1) << what.toStdString();
  };
  said_everywhere("plan.json");
  EXPECT_TRUE(window_->panels().model<OwnershipTable>().why().contains("plan.json"));
  ASSERT_TRUE(wait_for([&] { return !window_->session().isObserving(); }));
  EXPECT_TRUE(window_->session().why().contains("plan.json"));
  std::filesystem::remove(directory / "workload.json");  // plan.json is still broken
  open(directory.string());
  said_everywhere("plan.json");
  const std::string empty = folder_.path().toStdString() + "/empty.json";
  std::ofstream(empty) << "{\"traceEvents\": []}";
  open(empty);
  said_everywhere("no events");
  QTest::mouseClick(window_->notice().findChild<QToolButton*>(), Qt::LeftButton);
  QApplication::processEvents();
  EXPECT_FALSE(window_->panels().find("diagnostics").dock->visibleRegion().isEmpty());
}

// A simulated plan is not shown as a run after its model is read again, or after reading fails.
TEST_F(MouseTest, WhatWasSimulatedIsGoneWithItsModel) {
  const QString config = QString::fromStdString(sample_run() + "/config.json");
  window_->setUnattended();  // no question about the version that is lost
  bool settled = false;
  QObject::connect(window_.get(), &MainWindow::settled, [&] { settled = true; });
  const auto wait = [&] { return wait_for([&] { return settled; }); };
  window_->openModel(config, "8xH100");
  ASSERT_TRUE(wait());
  const RunPointer first = window_->context().run();
  ASSERT_NE(first, nullptr);
  window_->session().choose(2, 2);
  window_->session().simulateNow();
  ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
  settled = false;
  window_->actions().trigger("file.reload");
  EXPECT_EQ(window_->context().run(), nullptr);
  ASSERT_TRUE(wait());
  EXPECT_EQ(window_->session().versions().size(), 1);
  EXPECT_EQ(window_->context().run(), window_->session().current()->run);
  settled = false;
  window_->open({"/no/such/trace.json"});
  ASSERT_TRUE(wait());
  EXPECT_EQ(window_->context().run(), nullptr);
  EXPECT_FALSE(window_->timeline().isVisible());
}

TEST_F(MouseTest, OwnershipSaysWhetherAUnitIsGathered) {
  open(sample_run());
  auto& view = static_cast<QTableView&>(shown("ownership"));
  EXPECT_GE(view.columnWidth(2), view.fontMetrics().horizontalAdvance("unsharded") + 8);
  double_click(view, view.model()->index(1, 0));
  EXPECT_EQ(chosen().unit,
            window_->panels().model<OwnershipTable>().unitAt(view.model()->index(1, 0)));
  // The columns of ranks share the dock's width.
  window_->resize(2400, 1000);
  window_->resizeDocks({window_->panels().find("ownership").dock}, {1600}, Qt::Horizontal);
  QApplication::processEvents();
  int width = 0;
  for (int column = 0; column < view.model()->columnCount(); ++column) {
    width += view.columnWidth(column);
  }
  EXPECT_NEAR(width, view.viewport()->width(), view.model()->columnCount());
}

}  // namespace
}  // namespace shardlens::gui
