#include <QClipboard>
#include <QComboBox>
#include <QFile>
#include <QLabel>
#include <QPlainTextEdit>
#include <QTableView>
#include <QTest>
#include <QTreeView>

#include "gui/model/base/time_axis.h"
#include "gui/model/tables/event_table.h"
#include "gui/model/tables/exposed_groups.h"
#include "gui/model/tables/exposed_table.h"
#include "gui/model/tables/unit_tree.h"
#include "gui/view/panels/notes_panel.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/row_filter.h"
#include "tests/gui/view/window_test.h"

namespace shardlens::gui {
namespace {

class FindAndShareTest : public WindowTest {
 protected:
  const RankData& rank() { return *window_->context().rank(); }
};

TEST_F(FindAndShareTest, FiltersLeaveTheRowsThatContainTheText) {
  open(sample_run());
  const Panels::Docked& modules = window_->panels().find("modules");
  auto& tree = dynamic_cast<QTreeView&>(*modules.panel->view());
  auto* filter = modules.panel->findChild<RowFilter*>();
  ASSERT_NE(filter, nullptr);
  const auto shown = [&tree](const std::string& unit) {
    QModelIndex index = dynamic_cast<UnitTree&>(*tree.model()).indexOf(unit);
    bool hidden = false;
    for (; index.isValid(); index = index.parent()) {
      hidden = hidden || tree.isRowHidden(index.row(), index.parent());
    }
    return !hidden;
  };
  EXPECT_TRUE(shown("model.layers.3"));
  QTest::keyClicks(filter, "lm_head");
  EXPECT_FALSE(shown("model.layers.3"));
  EXPECT_FALSE(shown("<clip>"));
  EXPECT_TRUE(shown(""));  // the root is above it
  filter->clear();
  EXPECT_TRUE(shown("model.layers.3"));
  EXPECT_TRUE(shown("<clip>"));

  const Panels::Docked& exposed = window_->panels().find("exposed");
  window_->panels().raise("exposed");
  auto& table = dynamic_cast<QTableView&>(*exposed.panel->view());
  exposed.panel->findChild<RowFilter*>()->setText("layers.5");
  int left = 0, all = 0;
  for (int row = 0; row < table.model()->rowCount(); ++row) {
    const bool contains = table.model()->index(row, 0).data().toString().contains("layers.5");
    EXPECT_EQ(table.isRowHidden(row), !contains);
    left += contains ? 1 : 0;
    ++all;
  }
  EXPECT_GT(left, 0);
  EXPECT_LT(left, all);
}

// The total above the table is the sum of the rows that the filter leaves.
TEST_F(FindAndShareTest, TheTotalIsOfTheRowsThatAreShown) {
  open(sample_run());
  const Panels::Docked& exposed = window_->panels().find("exposed");
  window_->panels().raise("exposed");
  const QLabel* note = exposed.panel->findChild<QLabel*>();
  ASSERT_NE(note, nullptr);
  auto* how = exposed.panel->findChild<QComboBox*>();
  ASSERT_NE(how, nullptr);
  const RankData& of = rank();
  for (const int kind : {0, 1}) {  // each collective, and sums by unit and kind
    how->setCurrentIndex(kind);
    window_->panels().flush();
    QList<RowFilter*> filters = exposed.panel->findChildren<RowFilter*>();
    RowFilter* filter = filters.at(kind);
    Nanoseconds all = 0, wanted = 0;
    for (uint32_t i = 0; i < of.timeline.collectives.size(); ++i) {
      Nanoseconds time = 0;
      for (const analysis::Interval& part : of.exposed(i)) {
        time += part.length();
      }
      all += time;
      wanted += of.owner_of(i) == "model.layers.5" ? time : 0;
    }
    ASSERT_EQ(all, of.figures.figures.exposed_comm);
    ASSERT_GT(wanted, 0);
    EXPECT_TRUE(note->text().endsWith(durationText(all) + " exposed in total"))
        << note->text().toStdString();
    filter->setText("layers.5");
    EXPECT_TRUE(note->text().endsWith(durationText(wanted) + " exposed in these"))
        << note->text().toStdString();
    window_->context().selectStep(0);  // other rows, with the same filter
    window_->panels().flush();
    Nanoseconds of_step = 0;
    const auto& table = dynamic_cast<const QTableView&>(*exposed.panel->view());
    for (int row = 0; row < table.model()->rowCount(); ++row) {
      const QModelIndex index = table.model()->index(row, 0);
      if (index.data().toString().contains("layers.5")) {
        of_step += kind == 0 ? window_->panels().model<ExposedTable>().exposedAt(index)
                             : window_->panels().model<ExposedGroups>().exposedAt(index);
      }
    }
    ASSERT_GT(of_step, 0);
    ASSERT_LT(of_step, wanted);
    EXPECT_TRUE(note->text().endsWith(durationText(of_step) + " exposed in these"))
        << note->text().toStdString();
    window_->context().selectStep(std::nullopt);
    filter->clear();
  }
}

// Qt remembers each character that was pasted, to undo it.
TEST_F(FindAndShareTest, ATablePastedIntoABoxIsCut) {
  open(sample_run());
  QList<QLineEdit*> boxes{window_->panels().find("events").panel->search()};
  for (RowFilter* filter : window_->findChildren<RowFilter*>()) {
    boxes.append(filter);
  }
  ASSERT_GT(boxes.size(), 1);
  QGuiApplication::clipboard()->setText(QString(30'000, u'x'));
  for (QLineEdit* box : boxes) {
    box->paste();
    EXPECT_FALSE(box->text().isEmpty());
    EXPECT_LT(box->text().size(), 5000) << box->accessibleName().toStdString();
    box->clear();
  }
}

TEST_F(FindAndShareTest, FoundEventsAreWalked) {
  open(sample_run());
  QTest::keyClick(window_.get(), Qt::Key_F, Qt::ControlModifier);
  const Panels::Docked& events = window_->panels().find("events");
  events.panel->search()->setText("all_gather");
  window_->panels().flush();
  const auto& table = window_->panels().model<EventTable>();
  ASSERT_GT(table.rowCount(), 2);
  const auto chosen = [this] { return window_->context().current().item->ref; };
  window_->actions().trigger("go.nextFound");
  EXPECT_EQ(chosen(), table.eventAt(table.index(0, 0)));
  window_->actions().trigger("go.nextFound");
  EXPECT_EQ(chosen(), table.eventAt(table.index(1, 0)));
  window_->actions().trigger("go.previousFound");
  window_->actions().trigger("go.previousFound");
  EXPECT_EQ(chosen(), table.eventAt(table.index(table.rowCount() - 1, 0)));
}

TEST_F(FindAndShareTest, WhatIsShownIsSharedAsOnePageWithoutScripts) {
  open(sample_run());
  const QString file = folder_.path() + "/shared.html";
  window_->context().selectUnit("model.layers.3");
  window_->timeline().setBookmark(1'000'000, "<script>alert(1)</script>");
  window_->panels().get<NotesPanel>().edit().setPlainText("why <b>slow</b>?");
  window_->panels().raise("exposed");
  ASSERT_TRUE(window_->exportTo(file)) << window_->lastError().toStdString();
  QFile page(file);
  ASSERT_TRUE(page.open(QIODevice::ReadOnly));
  const QString text = QString::fromUtf8(page.readAll());
  EXPECT_FALSE(text.contains("<script"));
  EXPECT_TRUE(text.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
  EXPECT_TRUE(text.contains("why &lt;b&gt;slow&lt;/b&gt;?"));
  EXPECT_TRUE(text.contains("data:image/svg+xml;base64,"));
  EXPECT_FALSE(text.contains("http://"));
  EXPECT_TRUE(text.contains("<td>" + durationText(rank().figures.figures.exposed_comm) + "</td>"));
  EXPECT_TRUE(text.contains("<h2>Exposed</h2>"));
  EXPECT_TRUE(text.contains("model.layers.3"));
}

}  // namespace
}  // namespace shardlens::gui
