// The names of Ownership stay in place while the columns of ranks scroll.
#include "gui/view/widgets/frozen_table.h"

#include <QComboBox>
#include <QHeaderView>
#include <QLabel>
#include <QScrollBar>

#include "gui/model/base/time_axis.h"
#include "gui/model/tables/ownership_table.h"
#include "gui/view/widgets/headline_strip.h"
#include "gui/view/widgets/row_filter.h"
#include "tests/gui/view/mouse_window.h"

namespace shardlens::gui {
namespace {

class FrozenTableTest : public MouseTest {
 protected:
  FrozenTable& owners() { return dynamic_cast<FrozenTable&>(shown("ownership")); }
  static const OwnershipTable& model_of(const FrozenTable& table) {
    return dynamic_cast<const OwnershipTable&>(*table.model());
  }
  // The widget of the window that is drawn at a point of the table's viewport.
  QWidget* on_top(const FrozenTable& table, const QPoint& where) {
    return window_->childAt(table.viewport()->mapTo(window_.get(), where));
  }
  // Whether both views draw each row at the same height.
  static bool rows_agree(const FrozenTable& table) {
    const QTableView& frozen = table.frozen();
    if (frozen.viewport()->mapTo(&table, QPoint()) != table.viewport()->pos()) {
      return false;
    }
    for (int row = 0; row < table.model()->rowCount(); ++row) {
      if (table.isRowHidden(row) != frozen.isRowHidden(row) ||
          table.rowViewportPosition(row) != frozen.rowViewportPosition(row)) {
        return false;
      }
    }
    return true;
  }
  static bool is_seen(const FrozenTable& table, int column) {
    const int left = table.columnViewportPosition(column);
    return left >= table.frozen().width() &&
           left + table.columnWidth(column) <= table.viewport()->width();
  }
};

TEST_F(FrozenTableTest, NamesStayWhileRanksScroll) {
  open(sample_run());
  FrozenTable& table = owners();
  QScrollBar& across = *table.horizontalScrollBar();
  ASSERT_GT(across.maximum(), 0);
  across.setValue(across.maximum());
  QApplication::processEvents();
  ASSERT_LT(table.columnViewportPosition(0) + table.columnWidth(0), 0);
  EXPECT_EQ(on_top(table, {20, 20}), table.frozen().viewport());
  EXPECT_EQ(table.frozen().indexAt({20, 20}).column(), 0);
  EXPECT_EQ(table.frozen().width(), table.columnWidth(0));
  EXPECT_TRUE(rows_agree(table));

  table.verticalScrollBar()->setValue(table.verticalScrollBar()->maximum());
  EXPECT_TRUE(rows_agree(table));
  EXPECT_GT(table.frozen().verticalScrollBar()->value(), 0);
}

TEST_F(FrozenTableTest, AClickOnANameSelectsItsRow) {
  open(sample_run());
  FrozenTable& table = owners();
  table.horizontalScrollBar()->setValue(table.horizontalScrollBar()->maximum());
  QApplication::processEvents();
  const QPoint where(20, table.rowViewportPosition(3) + 4);
  QTest::mouseClick(on_top(table, where), Qt::LeftButton, {}, where);
  settle();
  ASSERT_EQ(table.selectionModel()->selectedRows().size(), 1);
  EXPECT_EQ(table.selectionModel()->selectedRows().front().row(), 3);
  EXPECT_EQ(chosen().unit, model_of(table).unitAt(table.model()->index(3, 0)));
  EXPECT_TRUE(table.hasFocus());
  // Nothing is scrolled out of view.
  EXPECT_EQ(table.horizontalScrollBar()->value(), table.horizontalScrollBar()->maximum());

  QTest::mouseClick(on_top(table, where), Qt::LeftButton, Qt::ControlModifier,
                    {20, table.rowViewportPosition(4) + 4});
  EXPECT_EQ(table.selectionModel()->selectedRows().size(), 2);
}

TEST_F(FrozenTableTest, AFilterHidesNamesAndRanks) {
  open(sample_run());
  FrozenTable& table = owners();
  auto* filter = window_->panels().find("ownership").panel->findChild<RowFilter*>();
  QTest::keyClicks(filter, "up_proj");
  QApplication::processEvents();
  ASSERT_TRUE(table.isRowHidden(0));
  EXPECT_TRUE(rows_agree(table));
  filter->clear();
  QApplication::processEvents();
  ASSERT_FALSE(table.isRowHidden(0));
  EXPECT_TRUE(rows_agree(table));
  // The filter applies also to rows that are shown later.
  QTest::keyClicks(filter, "norm");
  window_->context().selectUnit("model.layers.2");
  settle();
  ASSERT_LT(table.model()->rowCount(), 12);
  EXPECT_TRUE(rows_agree(table));
}

TEST_F(FrozenTableTest, AChosenRankComesIntoSightBesideTheNames) {
  open(simulated_ranks("run").toStdString());
  FrozenTable& table = owners();
  auto* box = window_->headline().findChildren<QComboBox*>()[0];
  for (const int rank : {7, 3, 0, 6}) {
    box->setCurrentIndex(rank);
    emit box->activated(rank);
    settle();
    EXPECT_TRUE(is_seen(table, OwnershipTable::kFixedColumns + rank)) << rank;
  }
  // The keys move to columns that are not covered either.
  table.setFocus();
  table.selectionModel()->setCurrentIndex(
      table.model()->index(2, 10), QItemSelectionModel::ClearAndSelect | QItemSelectionModel::Rows);
  for (int i = 0; i < 6; ++i) {
    QTest::keyClick(&table, Qt::Key_Left);
    ASSERT_GT(table.currentIndex().column(), 0);
    EXPECT_TRUE(is_seen(table, table.currentIndex().column())) << table.currentIndex().column();
  }
}

TEST_F(FrozenTableTest, EitherBorderChangesTheWidth) {
  open(sample_run());
  FrozenTable& table = owners();
  const int before = table.columnWidth(0);
  QWidget* header = table.frozen().horizontalHeader()->viewport();
  const QPoint border(before - 2, header->height() / 2);
  QTest::mousePress(header, Qt::LeftButton, {}, border);
  QTest::mouseMove(header, border + QPoint(10, 0));
  QTest::mouseMove(header, border + QPoint(25, 0));
  QTest::mouseRelease(header, Qt::LeftButton, {}, border + QPoint(25, 0));
  EXPECT_EQ(table.columnWidth(0), before + 25);
  EXPECT_EQ(table.frozen().width(), before + 25);
  EXPECT_EQ(table.frozen().columnWidth(0), before + 25);
  table.setColumnWidth(0, before);
  EXPECT_EQ(table.frozen().width(), before);
}

// Eight ranks share the elements of each flat parameter evenly.
TEST_F(FrozenTableTest, TotalsAreAboveTheNames) {
  open(sample_run());
  FrozenTable& table = owners();
  const plan::ResolvedPlan& plan = *plan_of(window_->context().run());
  Bytes all = 0, of_unit = 0;
  for (const plan::Parameter& parameter : plan.tree.parameters) {
    all += 4 * parameter.numel;
    of_unit += parameter.fqn.starts_with("model.layers.2.") ? 4 * parameter.numel : 0;
  }
  const auto said = [&] {
    return window_->panels().find("ownership").panel->findChild<QLabel*>()->text();
  };
  EXPECT_EQ(said(), QStringLiteral("%1 parameters, %2; each rank keeps %3")
                        .arg(plan.tree.parameters.size())
                        .arg(bytesText(all), bytesText(all / 8)));
  window_->context().selectUnit("model.layers.2");
  settle();
  EXPECT_EQ(said(), QStringLiteral("%1 parameters, %2; each rank keeps %3")
                        .arg(table.model()->rowCount())
                        .arg(bytesText(of_unit), bytesText(of_unit / 8)));
}

}  // namespace
}  // namespace shardlens::gui
