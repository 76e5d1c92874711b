// Keys go to the panel that the user looks at, and texts fit their widgets.
#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include <QClipboard>
#include <QComboBox>
#include <QDockWidget>
#include <QFormLayout>
#include <QHeaderView>
#include <QLabel>
#include <QLineEdit>
#include <QRegularExpression>
#include <QSpinBox>
#include <QStyleOptionComboBox>
#include <QTabBar>
#include <QTableView>
#include <QTextBrowser>
#include <QToolTip>

#include "gui/model/base/in_window.h"
#include "gui/model/tables/exposed_table.h"
#include "gui/view/panel_parts/plan_form.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/search_box.h"
#include "tests/gui/view/window_test.h"

namespace shardlens::gui {
namespace {

class KeysTest : public WindowTest {
 protected:
  void SetUp() override {
    WindowTest::SetUp();
    window_->setUnattended();  // no questions about what the tests leave unsaved
    window_->activateWindow();
    ASSERT_TRUE(QTest::qWaitForWindowActive(window_.get(), kMostMilliseconds));
  }
  // A window as on the first start.
  void startFirst(const QSize& size) {
    window_.reset();
    settings_->clear();
    make();
    window_->setUnattended();
    window_->resize(size);
  }
  [[nodiscard]] static bool isSeen(const QDockWidget& dock) {
    return dock.isVisible() && !dock.visibleRegion().isEmpty();
  }
  void clickTab(const QString& title) {
    for (QTabBar* bar : window_->findChildren<QTabBar*>()) {
      for (int tab = 0; bar->isVisible() && tab < bar->count(); ++tab) {
        if (bar->tabText(tab) == title) {
          QTest::mouseClick(bar, Qt::LeftButton, {}, bar->tabRect(tab).center());
          QApplication::processEvents();
          return;
        }
      }
    }
    FAIL() << "no tab " << title.toStdString();
  }
  void planAModel() {
    window_->openModel(QString::fromStdString(sample_run() + "/config.json"), "8xH100");
    ASSERT_TRUE(wait_for([&] {
      return window_->context().run() != nullptr && window_->session().current() != nullptr;
    }));
    window_->panels().flush();
    window_->actions().trigger("panel.whatif");
    QApplication::processEvents();
  }
  QSpinBox& box(const QString& name) {
    for (QSpinBox* each : window_->findChildren<QSpinBox*>()) {
      if (each->accessibleName() == name) {
        return *each;
      }
    }
    throw std::runtime_error("no such box");
  }
};

TEST_F(KeysTest, NoKeyGoesIntoACoveredPanel) {
  open(sample_run());
  QTest::keyClick(window_.get(), Qt::Key_F, Qt::ControlModifier);
  QApplication::processEvents();
  QLineEdit* search = window_->panels().find("events").panel->search();
  ASSERT_EQ(QApplication::focusWidget(), search);
  clickTab("Exposed");
  ASSERT_FALSE(isSeen(*window_->panels().find("events").dock));
  QTest::keyClicks(QApplication::focusWidget(), "mm");
  EXPECT_EQ(search->text(), "");

  // The focus moves from every panel that has the keyboard to every other one in front of it.
  for (const Panels::Docked& from : window_->panels().all()) {
    for (const Panels::Docked& to : window_->panels().all()) {
      window_->panels().raise(from.row->id);
      QApplication::processEvents();
      to.dock->raise();
      QApplication::processEvents();
      for (const Panels::Docked& each : window_->panels().all()) {
        EXPECT_TRUE(isSeen(*each.dock) || QApplication::focusWidget() == nullptr ||
                    !each.dock->isAncestorOf(QApplication::focusWidget()))
            << from.row->id << " to " << to.row->id;
      }
    }
  }
  // A closed panel leaves the keyboard to the timeline or a panel that is shown.
  window_->panels().raise("ownership");
  QApplication::processEvents();
  window_->panels().find("ownership").dock->close();
  QApplication::processEvents();
  ASSERT_NE(QApplication::focusWidget(), nullptr);
  EXPECT_TRUE(QApplication::focusWidget()->isVisible());
}

TEST_F(KeysTest, UndoInANumberUndoesTheEditOfThePlan) {
  planAModel();
  PlanSession& session = window_->session();
  const PlanState before = session.state();
  QSpinBox& batch = box("Batch");
  const int was = batch.value();
  batch.setFocus();
  QTest::keyClick(&batch, Qt::Key_Up);
  QTest::keyClick(&batch, Qt::Key_Up);
  EXPECT_EQ(session.state().step.batch, was + 2);
  QTest::keyClick(QApplication::focusWidget(), Qt::Key_Z, Qt::ControlModifier);
  QTest::keyClick(QApplication::focusWidget(), Qt::Key_Z, Qt::ControlModifier);
  EXPECT_EQ(session.state(), before);
  EXPECT_EQ(batch.value(), was);
  QTest::keyClick(QApplication::focusWidget(), Qt::Key_Y, Qt::ControlModifier);
  EXPECT_EQ(session.state().step.batch, was + 1);

  // While a number is being typed, the typing is undone.
  QTest::keyClick(&batch, Qt::Key_End);
  QTest::keyClicks(&batch, "7");
  QTest::keyClick(&batch, Qt::Key_Z, Qt::ControlModifier);
  EXPECT_EQ(session.state().step.batch, was + 1);
  EXPECT_EQ(batch.text(), QString::number(was + 1));
}

// On the first start with a plan of a model, at both usual sizes.
TEST_F(KeysTest, ThePlanFormCutsNothing) {
  for (const QSize size : {QSize(1280, 800), QSize(1920, 1080)}) {
    startFirst(size);
    planAModel();
    const auto& form = *window_->findChild<PlanForm*>();
    int boxes = 0;
    for (const QComboBox* each : form.findChildren<QComboBox*>()) {
      QStyleOptionComboBox option;
      option.initFrom(each);
      const int room =
          each->style()
              ->subControlRect(QStyle::CC_ComboBox, &option, QStyle::SC_ComboBoxEditField, each)
              .width();
      for (int i = 0; i < each->count(); ++i) {
        EXPECT_GE(room - 4, each->fontMetrics().horizontalAdvance(each->itemText(i)))
            << size.width() << ' ' << each->itemText(i).toStdString();
      }
      ++boxes;
    }
    EXPECT_GT(boxes, 6);
    for (const QLabel* label : form.findChildren<QLabel*>()) {
      EXPECT_GE(label->width(), label->sizeHint().width()) << label->text().toStdString();
    }
    const QRect content = form.widget()->rect();
    EXPECT_LE(content.width(), form.viewport()->width());
  }
}

TEST_F(KeysTest, TheFirstLayoutIsThatOfReset) {
  for (const QSize size : {QSize(1280, 800), QSize(1920, 1080)}) {
    startFirst(size);
    open(sample_run());
    const auto places = [this] {
      std::map<std::string, std::array<int, 4>> out;
      for (const Panels::Docked& each : window_->panels().all()) {
        if (!isSeen(*each.dock)) {
          continue;  // its size is that of its tab's place when it is shown
        }
        const QRect at = each.dock->geometry();
        out[each.row->id] = {at.x(), at.y(), at.width(), at.height()};
      }
      return out;
    };
    const auto first = places();
    window_->actions().trigger("view.reset");
    QApplication::processEvents();
    EXPECT_EQ(places(), first) << size.width();
  }
}

TEST_F(KeysTest, ColumnsStayWhenVersionsAreAdded) {
  window_->resize(1920, 1080);
  planAModel();
  auto& table = *qobject_cast<QTableView*>(window_->panels().find("whatif").panel->view());
  const auto places = [&table] {
    std::vector<int> out;
    for (int column = 0; column < table.model()->columnCount(); ++column) {
      out.push_back(table.columnViewportPosition(column));
    }
    return out;
  };
  const std::vector<int> before = places();
  for (const size_t knob : {size_t{0}, size_t{2}, size_t{3}}) {
    const size_t versions = window_->session().versions().size();
    window_->session().choose(knob, 1);
    window_->session().simulateNow();
    ASSERT_TRUE(wait_for([&] { return !window_->session().isBusy(); }));
    if (window_->session().versions().size() > versions) {
      EXPECT_EQ(places(), before) << knob;
    }
  }
  EXPECT_GT(window_->session().versions().size(), 2);
}

// After a search the keyboard is at its best plan, although advice is listed before it.
TEST_F(KeysTest, AfterASearchItsBestPlanIsChosen) {
  open(sample_run());
  PlanProposals& proposals = window_->proposals();
  ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
  window_->actions().trigger("plan.advise");
  ASSERT_TRUE(wait_for([&] { return !proposals.isBusy() && !proposals.list().empty(); }));
  ASSERT_FALSE(proposals.list().front().found);
  const auto advice = static_cast<int>(proposals.list().size());
  QAbstractItemView& view = *window_->panels().find("advice").panel->view();
  window_->actions().trigger("plan.search");
  ASSERT_TRUE(wait_for([&] { return !proposals.isBusy(); }));
  ASSERT_GT(static_cast<int>(proposals.list().size()), advice);
  EXPECT_EQ(view.currentIndex().data(ColumnTable::kRowRole).toInt(), advice);
  EXPECT_TRUE(proposals.list()[static_cast<size_t>(advice)].found);
}

// Titles divide what advise and the search propose. They are no rows for keys, mouse and copies.
TEST_F(KeysTest, AdviceIsBelowTitles) {
  open(sample_run());
  PlanProposals& proposals = window_->proposals();
  ASSERT_TRUE(wait_for([&] { return window_->session().current() != nullptr; }));
  auto& view = static_cast<QTableView&>(*window_->panels().find("advice").panel->view());
  for (const char* command : {"plan.advise", "plan.search"}) {
    window_->actions().trigger(command);
    ASSERT_TRUE(wait_for([&] { return !proposals.isBusy() && !proposals.list().empty(); }));
  }
  window_->panels().raise("advice");
  QApplication::processEvents();
  const auto all = static_cast<int>(proposals.list().size());
  const auto changes =
      static_cast<int>(std::ranges::count(proposals.list(), false, &Proposal::found));
  ASSERT_GT(changes, 1);
  ASSERT_GT(all, changes);
  const auto text = [&view](int row) { return view.model()->index(row, 0).data().toString(); };
  for (const bool sorted : {false, true}) {
    if (sorted) {
      view.sortByColumn(5, Qt::AscendingOrder);  // by the peak
    }
    ASSERT_EQ(view.model()->rowCount(), all + 2);
    EXPECT_EQ(text(0), "Changes of this plan");
    EXPECT_EQ(text(changes + 1), "Search");
    for (int row = 1; row <= changes; ++row) {
      const auto of = view.model()->index(row, 0).data(ColumnTable::kRowRole).toUInt();
      EXPECT_FALSE(proposals.list()[of].found) << row;
    }
    // Every row is reached with Down, and no title is.
    view.setFocus();
    for (int i = 0; i < all; ++i) {
      QTest::keyClick(&view, Qt::Key_Up);
    }
    std::vector<int> reached;
    for (int i = 0; i < all; ++i) {
      reached.push_back(view.currentIndex().row());
      QTest::keyClick(&view, Qt::Key_Down);
    }
    std::vector<int> expected;
    for (int row = 1; row < all + 2; ++row) {
      if (row != changes + 1) {
        expected.push_back(row);
      }
    }
    EXPECT_EQ(reached, expected);
    for (const Qt::Key key : {Qt::Key_PageUp, Qt::Key_PageUp, Qt::Key_PageUp, Qt::Key_Home}) {
      QTest::keyClick(&view, key);
      EXPECT_FALSE(view.currentIndex().data(ColumnTable::kTitleRole).toBool());
    }
    QTest::keyClick(&view, Qt::Key_A, Qt::ControlModifier);
    QTest::keyClick(&view, Qt::Key_C, Qt::ControlModifier);
    const QStringList lines = QApplication::clipboard()->text().split(u'\n');
    EXPECT_EQ(lines.size(), all);
    EXPECT_EQ(lines.filter("Changes of this plan").size() +
                  lines.filter(QRegularExpression("^Search")).size(),
              0);
  }
  const Panel& panel = *window_->panels().find("advice").panel;
  const MenuTarget target = panel.targetAt(view.model()->index(0, 0));
  EXPECT_EQ(target.text, "");
  EXPECT_EQ(target.table.count("\r\n"), all + 1);  // with the header
  // A click on a title makes no version.
  const auto versions = window_->session().versions().size();
  const QPoint title = view.visualRect(view.model()->index(0, 0)).center();
  view.scrollToTop();
  QTest::mouseDClick(view.viewport(), Qt::LeftButton, {}, title);
  QApplication::processEvents();
  EXPECT_EQ(window_->session().versions().size(), versions);
  EXPECT_EQ(window_->session().undoStack().count(), 0);
}

// The window has no command line: no text advises to add a flag.
TEST_F(KeysTest, NoTextHasAFlagOfTheCommandLine) {
  const QRegularExpression flag("(^|[\\s(`])--[a-z]");
  const auto expect_none = [&flag](const QString& text) {
    EXPECT_FALSE(flag.match(text).hasMatch()) << text.toStdString();
  };
  for (const std::string& run :
       {sample_run(), sample_run() + "/../fsdp2-h200", pytorch_run("fsdp2-memory"),
        pytorch_run("fsdp1-none"), pytorch_run("ddp-buckets")}) {
    open(run);
    ASSERT_TRUE(wait_for([&] { return !window_->session().isBusy(); }));
    int texts = 0;
    for (const Panels::Docked& docked : window_->panels().all()) {
      window_->panels().raise(docked.row->id);
      window_->panels().flush();
      for (const QLabel* label : docked.panel->findChildren<QLabel*>()) {
        expect_none(label->text());
      }
      for (const QAbstractItemView* view : docked.panel->findChildren<QAbstractItemView*>()) {
        const QAbstractItemModel* model = view->model();
        for (int row = 0; model != nullptr && row < std::min(200, model->rowCount()); ++row) {
          for (int column = 0; column < model->columnCount(); ++column) {
            expect_none(model->index(row, column).data().toString());
            expect_none(model->index(row, column).data(Qt::ToolTipRole).toString());
            ++texts;
          }
        }
      }
    }
    EXPECT_GT(texts, 100) << run;
  }
}

// Every search box is tried: Modules, Ownership, both lists of Exposed, Events, and Ctrl+K.
TEST_F(KeysTest, SearchBoxesTakeRegularExpressions) {
  open(sample_run());
  window_->panels().raise("events");
  auto& events = *dynamic_cast<SearchBox*>(window_->panels().find("events").panel->search());
  const auto rows = [&](const QString& text) {
    events.setText(text);
    window_->panels().flush();
    return window_->panels().find("events").panel->view()->model()->rowCount();
  };
  const int mm = rows("^aten::mm$"), views = rows("^aten::view$");
  ASSERT_GT(mm, 0);
  ASSERT_GT(views, 0);
  EXPECT_EQ(rows("^aten::(mm|view)$"), mm + views);
  EXPECT_FALSE(events.isMarked());
  EXPECT_EQ(rows("aten::mm("), 0);  // no regular expression, and no name contains it
  EXPECT_TRUE(events.isMarked());
  EXPECT_FALSE(events.toolTip().isEmpty());
  EXPECT_GT(rows("FSDP::all_gather (model.layers.0"), 0);  // but names contain this
  EXPECT_TRUE(events.isMarked());
  rows("");
  EXPECT_FALSE(events.isMarked());

  int boxes = 0;
  for (QLineEdit* edit : window_->findChildren<QLineEdit*>()) {
    auto* box = dynamic_cast<SearchBox*>(edit);
    if (box == nullptr) {
      continue;
    }
    box->setText("(");
    EXPECT_TRUE(box->isMarked()) << box->accessibleName().toStdString();
    box->clear();
    EXPECT_FALSE(box->isMarked()) << box->accessibleName().toStdString();
    ++boxes;
  }
  EXPECT_EQ(boxes, 5);

  QAbstractItemView& owners = *window_->panels().find("ownership").panel->view();
  for (QLineEdit* box : window_->panels().find("ownership").panel->findChildren<QLineEdit*>()) {
    box->setText("layers\\.[02]\\..*q_proj");
  }
  QStringList shown;
  for (int row = 0; row < owners.model()->rowCount(); ++row) {
    if (!qobject_cast<QTableView*>(&owners)->isRowHidden(row)) {
      shown.append(owners.model()->index(row, 0).data().toString());
    }
  }
  EXPECT_EQ(shown, (QStringList{"model.layers.0.self_attn.q_proj.weight",
                                "model.layers.2.self_attn.q_proj.weight"}));
}

// A drag over several rows that returns to one of them.
TEST_F(KeysTest, TheRowThatIsLeftOfSeveralIsSelected) {
  open(sample_run());
  window_->panels().raise("exposed");
  window_->panels().flush();
  QAbstractItemView& view = *window_->panels().find("exposed").panel->view();
  const auto& table = window_->panels().model<ExposedTable>();
  QItemSelectionModel& rows = *view.selectionModel();
  constexpr auto kRows = QItemSelectionModel::ClearAndSelect | QItemSelectionModel::Rows;
  rows.select(view.model()->index(0, 0), kRows);
  rows.select({view.model()->index(0, 0), view.model()->index(2, 0)}, kRows);
  ASSERT_EQ(rows.selectedRows().size(), 3);
  const QModelIndex left = view.model()->index(2, 0);
  rows.select(left, kRows);
  ASSERT_TRUE(window_->context().current().item);
  EXPECT_EQ(window_->context().current().item->ref, table.itemAt(left).ref);
}

TEST_F(KeysTest, SeveralRowsAreCopied) {
  open(sample_run());
  window_->panels().raise("exposed");
  window_->panels().flush();
  QAbstractItemView& view = *window_->panels().find("exposed").panel->view();
  const auto where = [&view](int row) {
    return view.visualRect(view.model()->index(row, 0)).center();
  };
  QTest::mouseClick(view.viewport(), Qt::LeftButton, {}, where(0));
  const Selection first = window_->context().current();
  QTest::mouseClick(view.viewport(), Qt::LeftButton, Qt::ShiftModifier, where(2));
  window_->panels().flush();
  EXPECT_EQ(window_->context().current(), first);  // only the first click selected something
  EXPECT_EQ(view.selectionModel()->selectedRows().size(), 3);
  QTest::keyClick(&view, Qt::Key_C, Qt::ControlModifier);
  const QStringList lines = QApplication::clipboard()->text().split('\n');
  ASSERT_EQ(lines.size(), 3);
  for (int row = 0; row < 3; ++row) {
    EXPECT_TRUE(lines[row].startsWith(view.model()->index(row, 0).data().toString() + '\t'));
    EXPECT_EQ(lines[row].count('\t'), view.model()->columnCount() - 1);
  }
}

TEST(InWindowTest, AdviceNamesWhatTheWindowHas) {
  EXPECT_EQ(in_window("find out what delays that rank (--by rank)"),
            "find out what delays that rank (the panel Ranks)");
  EXPECT_EQ(in_window("overlap_ratio is null (--comm-regex can select communication events by "
                      "name)"),
            "overlap_ratio is null");
  EXPECT_EQ(in_window("record a run whose plan has one, or give --hardware to use that hardware's "
                      "collectives"),
            "record a run whose plan has one, or choose a machine that adds a GPU's collectives");
  EXPECT_EQ(in_window("a -- b"), "a -- b");
}

}  // namespace
}  // namespace shardlens::gui
