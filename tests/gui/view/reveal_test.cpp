// A selection becomes visible, whichever panel, box or key made it.
#include <string>

#include <QComboBox>
#include <QTableView>
#include <QTextBrowser>

#include "gui/model/tables/exposed_table.h"
#include "gui/model/tables/ranks_table.h"
#include "gui/model/tables/unit_tree.h"
#include "gui/view/widgets/headline_strip.h"
#include "tests/gui/view/mouse_window.h"
#include "tests/support/generated_run.h"

namespace shardlens::gui {
namespace {

using Band = TimelineLayout::Band;

class RevealTest : public MouseTest {
 protected:
  void openEightRanks() {
    test::GeneratedRun generated;
    generated.ranks = 8;
    generated.steps = 3;
    open(write_run(generated.run().traces, "run"));
  }
  void scrollToTop() { window_->timeline().scrollBy(-1'000'000); }
  [[nodiscard]] bool isSeen(double top, double bottom) {
    const double room = canvas()->height() - TimelineScene::kHeader;
    return top >= scene().scroll && bottom <= scene().scroll + room;
  }
  [[nodiscard]] bool isRankSeen(size_t rank) {
    for (const Band& band : scene().layout().bands) {
      if (band.kind == Band::Kind::kRank && band.rank == rank) {
        return isSeen(band.top, band.top + band.height) && !scene().collapsed().contains(rank);
      }
    }
    return false;
  }
  // The lane of the selected item, and the item's time.
  [[nodiscard]] bool isItemSeen() {
    const auto place = scene().place(*chosen().item);
    const Band* band =
        place ? scene().layout().find(chosen().rank, place->lane, place->row) : nullptr;
    const analysis::Interval when = *window_->context().itemInterval(), view = scene().axis.view();
    return band != nullptr && isSeen(band->top, band->top + band->height) &&
           when.start < view.end && when.end > view.start;
  }
  QString inspector() {
    return window_->panels().find("inspector").panel->findChild<QTextBrowser*>()->toPlainText();
  }
};

TEST_F(RevealTest, AChosenRankIsShownUnfolded) {
  openEightRanks();
  auto* box = window_->headline().findChildren<QComboBox*>()[0];
  EXPECT_FALSE(isRankSeen(6));
  box->setFocus();
  for (int i = 0; i < 6; ++i) {
    QTest::keyClick(box, Qt::Key_Down);
  }
  settle();
  EXPECT_TRUE(isRankSeen(6));
  EXPECT_TRUE(inspector().startsWith("rank 6")) << inspector().toStdString();

  // The rank that was only unfolded because it was chosen is folded again.
  QAbstractItemView& ranks = shown("ranks");
  const RanksTable& table = window_->panels().model<RanksTable>();
  click(ranks, table.indexOfRank(3));
  EXPECT_EQ(chosen().rank, 3);
  EXPECT_TRUE(isRankSeen(3));
  EXPECT_TRUE(scene().collapsed().contains(6));
  EXPECT_FALSE(scene().collapsed().contains(0));

  // A rank that the user folds stays folded.
  window_->timeline().toggleRank(3);
  EXPECT_TRUE(scene().collapsed().contains(3));
  EXPECT_EQ(chosen().rank, 3);
}

TEST_F(RevealTest, AnExposedCollectiveIsShownInItsLane) {
  openEightRanks();
  window_->context().selectRank(7);
  settle();
  scrollToTop();
  QTest::keyClick(&window_->timeline(), Qt::Key_E);
  settle();
  ASSERT_TRUE(chosen().item);
  EXPECT_EQ(chosen().rank, 7);
  EXPECT_TRUE(isItemSeen());
  EXPECT_TRUE(inspector().contains(QRegularExpression("rank\\s+7"))) << inspector().toStdString();

  QAbstractItemView& exposed = shown("exposed");
  for (int row = 1; row < 4; ++row) {
    window_->timeline().showInterval({0, 1000});  // where none of them is
    scrollToTop();
    ASSERT_FALSE(isItemSeen());
    click(exposed, exposed.model()->index(row, 0));
    EXPECT_EQ(*chosen().item,
              window_->panels().model<ExposedTable>().itemAt(exposed.model()->index(row, 0)));
    EXPECT_TRUE(isItemSeen()) << row;
  }

  // This holds also if its rank was folded.
  window_->timeline().setAllCollapsed(true);
  ASSERT_FALSE(isItemSeen());
  QTest::keyClick(&window_->timeline(), Qt::Key_E);
  settle();
  EXPECT_TRUE(isItemSeen());
  window_->context().back();
  EXPECT_TRUE(isItemSeen());
}

// A second click, such as that of a double click, finds what the first one found.
TEST_F(RevealTest, AClickInTheTimelineMovesNothing) {
  openEightRanks();
  window_->timeline().setAllCollapsed(false);
  for (const size_t rank : {size_t{2}, size_t{5}}) {
    const QPoint where = on(Band::Kind::kLane, rank, 400);
    const double scroll = scene().scroll;
    QTest::mouseClick(canvas(), Qt::LeftButton, {}, where);
    settle();
    EXPECT_EQ(chosen().rank, rank);
    EXPECT_EQ(scene().scroll, scroll);
  }
}

TEST_F(RevealTest, TheLanesOfTheOtherRunAreScrolledTo) {
  window_->resize(1280, 620);
  open(sample_run());
  ASSERT_TRUE(wait_for([&] { return !window_->session().isObserving(); }));
  window_->actions().trigger("plan.simulate");
  ASSERT_TRUE(wait_for([&] { return scene().ghost().run != nullptr; }));
  scrollToTop();
  const auto lanes = scene().layout().extentOfGhost();
  ASSERT_TRUE(lanes);
  ASSERT_FALSE(isSeen(lanes->top, lanes->top + 60));
  QTest::keyClick(&window_->timeline(), Qt::Key_F, Qt::ShiftModifier);
  EXPECT_TRUE(isSeen(lanes->top, lanes->top + 60));
}

// Each module selects the unit that has its parameters, from the plan's lists of parameters.
TEST_F(RevealTest, EveryModuleSelectsItsUnit) {
  open(sample_run());
  const plan::ResolvedPlan& plan = *plan_of(window_->context().run());
  const UnitTree& tree = window_->panels().model<UnitTree>();
  int inside = 0;
  for (const plan::Unit& unit : plan.units) {
    for (const uint32_t parameter : unit.parameters) {
      const std::string& module = plan.tree.modules[plan.tree.parameters[parameter].module].fqn;
      EXPECT_EQ(tree.unitOfModule(module), unit.fqn) << module;
      inside += module != unit.fqn ? 1 : 0;
    }
  }
  EXPECT_GT(inside, 10);

  QAbstractItemView& modules = shown("modules");
  const QModelIndexList found =
      modules.model()->match(modules.model()->index(0, 0), Qt::DisplayRole, "lm_head", 1,
                             Qt::MatchStartsWith | Qt::MatchRecursive);
  ASSERT_EQ(found.size(), 1);
  click(modules, found.front());
  EXPECT_EQ(chosen().unit, "");
  // The row stays chosen: the buttons below the tree edit this module.
  EXPECT_EQ(modules.currentIndex(), found.front());
  EXPECT_TRUE(inspector().startsWith("unit (root)")) << inspector().toStdString();

  window_->context().clear();
  QTest::keyClick(window_.get(), Qt::Key_K, Qt::ControlModifier);
  QWidget* palette = QApplication::activeModalWidget();
  ASSERT_NE(palette, nullptr);
  QTest::keyClicks(palette->focusWidget(), "layers.2.mlp.up_proj");
  QTest::keyClick(palette->focusWidget(), Qt::Key_Return);
  EXPECT_EQ(chosen().unit, "model.layers.2");
}

// This holds also if the keyboard is at another row, which belongs to no unit.
TEST_F(RevealTest, ModulesShowsNoUnitWhenNoneIsSelected) {
  open(sample_run());
  auto& view = shown("modules");
  const UnitTree& tree = window_->panels().model<UnitTree>();
  const QModelIndex unit = tree.indexOf("model.layers.2");
  const QModelIndexList sections =
      view.model()->match(view.model()->index(0, 0), Qt::DisplayRole, "layers", 1,
                          Qt::MatchStartsWith | Qt::MatchRecursive);
  ASSERT_EQ(sections.size(), 1);
  QModelIndex fold = view.model()->index(0, 0, sections.front());
  ASSERT_FALSE(tree.unitAt(fold));  // several blocks
  click(view, unit);
  ASSERT_EQ(chosen().unit, "model.layers.2");
  view.selectionModel()->setCurrentIndex(fold, QItemSelectionModel::NoUpdate);
  window_->context().clear();
  settle();
  EXPECT_FALSE(view.selectionModel()->hasSelection());
}

}  // namespace
}  // namespace shardlens::gui
