// Lanes of the timeline that the user pins, hides, moves and unfolds, with keys and with the menu.
#include <algorithm>

#include <QMenu>

#include "tests/gui/view/mouse_window.h"

namespace shardlens::gui {
namespace {

using Band = TimelineLayout::Band;

class LanesTest : public MouseTest {
 protected:
  // The pointer stays where it is when a window closes: not over the timeline of the next test.
  void TearDown() override {
    QTest::mouseMove(window_.get(), QPoint(1, 1));
    QApplication::processEvents();
    MouseTest::TearDown();
  }
  // Names of the lanes of a rank from top to bottom, without the pinned ones.
  QStringList lanes(size_t rank = 0) {
    QStringList out;
    for (const Band& band : scene().layout().bands) {
      if (band.rank == rank && !band.pinned && !band.name.isEmpty() && !out.contains(band.name)) {
        out.append(band.name);
      }
    }
    return out;
  }
  const Band& band(const QString& name, bool pinned = false) {
    return *std::ranges::find_if(scene().layout().bands, [&](const Band& each) {
      return each.name == name && each.pinned == pinned;
    });
  }
  QPoint middle(const Band& of, int x) {
    return {x, static_cast<int>(scene().topOf(of) + of.height / 2)};
  }
  void point_at(const QString& name) {
    QTest::mouseMove(canvas(), middle(band(name), 300));
    QApplication::processEvents();
  }
  void key(Qt::Key which, Qt::KeyboardModifiers with = Qt::NoModifier) {
    QTest::keyClick(window_.get(), which, with);
    settle();
  }
};

TEST_F(LanesTest, KeysActOnTheLaneUnderThePointer) {
  open(sample_run());
  const QStringList first = lanes();
  ASSERT_TRUE(first.contains("compute"));
  point_at("compute");
  key(Qt::Key_H);
  EXPECT_FALSE(lanes().contains("compute"));
  EXPECT_EQ(lanes().size(), first.size() - 1);
  key(Qt::Key_H);  // the pointer did not move: it is shown again
  EXPECT_EQ(lanes(), first);

  point_at("exposed");
  const qsizetype at = first.indexOf("exposed");
  key(Qt::Key_Up, Qt::AltModifier);
  key(Qt::Key_Up, Qt::AltModifier);
  EXPECT_EQ(lanes().indexOf("exposed"), at - 2);
  key(Qt::Key_Down, Qt::AltModifier);
  EXPECT_EQ(lanes().indexOf("exposed"), at - 1);

  point_at("compute");
  key(Qt::Key_P);
  ASSERT_GT(scene().layout().pinned, 0);
  const Band pinned = band("compute", true);
  EXPECT_EQ(pinned.top, 0);
  EXPECT_TRUE(lanes().contains("compute"));  // it is in its place too
  // What is clicked in a pinned lane is what is there, however far the others are scrolled.
  window_->timeline().setAllCollapsed(false);
  window_->timeline().scrollBy(40);
  const LaneRow& row = scene().lane(0, pinned.lane).rows[pinned.row];
  const LaneItems items = row.items();
  const LaneItem longest =
      *std::ranges::max_element(items, {}, [](const LaneItem& i) { return i.end - i.start; });
  const analysis::Interval shown =
      window_->context().run()->shown(*window_->context().rank(), {longest.start, longest.end});
  const double x = (scene().axis.toPixel(shown.start) + scene().axis.toPixel(shown.end)) / 2 +
                   TimelineScene::kGutter;
  QTest::mouseClick(canvas(), Qt::LeftButton, {}, middle(pinned, static_cast<int>(x)));
  EXPECT_EQ(chosen().item, (Selection::Item{0, Lane::Source::kEvents, longest.ref}));

  key(Qt::Key_H, Qt::ShiftModifier);
  EXPECT_EQ(lanes(), first);
  EXPECT_EQ(scene().layout().pinned, 0);
}

// Without the pointer keys act on the lane of the selected item.
TEST_F(LanesTest, TheMenuOfANameHasTheSame) {
  open(sample_run());
  const QStringList first = lanes();
  const auto entry = [this](const QString& text) -> QAction* {
    const auto* menu = window_->findChild<QMenu*>("context");
    for (QAction* action : menu == nullptr ? QList<QAction*>() : menu->actions()) {
      if (action->text().startsWith(text)) {
        return action;
      }
    }
    return nullptr;
  };
  const auto open_menu = [&](const QString& lane) {
    const QPoint where = middle(band(lane), 40);
    QContextMenuEvent event(QContextMenuEvent::Mouse, where, canvas()->mapToGlobal(where));
    QApplication::sendEvent(canvas(), &event);
    QApplication::processEvents();
  };
  const auto close_menu = [this] { delete window_->findChild<QMenu*>("context"); };
  open_menu("copies");
  if (entry("Hide copies") == nullptr) {
    open_menu("compute");
  }
  close_menu();
  open_menu("all-gather");
  ASSERT_NE(entry("Hide all-gather"), nullptr);
  entry("Hide all-gather")->trigger();
  close_menu();
  EXPECT_FALSE(lanes().contains("all-gather"));
  open_menu("compute");
  ASSERT_NE(entry("Show all-gather again"), nullptr);
  entry("Show all-gather again")->trigger();
  EXPECT_EQ(lanes(), first);
  entry("Pin compute of rank 0")->trigger();
  entry("Move compute up")->trigger();
  close_menu();
  EXPECT_EQ(lanes().indexOf("compute"), first.indexOf("compute") - 1);
  EXPECT_GT(scene().layout().pinned, 0);
  open_menu("compute");
  EXPECT_NE(entry("Unpin compute of rank 0"), nullptr);
  close_menu();

  window_->actions().trigger("lane.first");
  QEvent leave(QEvent::Leave);
  QApplication::sendEvent(canvas(), &leave);
  EXPECT_FALSE(window_->actions().find("lane.hide")->enabled());
  key(Qt::Key_E);  // the most exposed collective
  const auto chosen_lane = window_->timeline().chosenLane();
  ASSERT_TRUE(chosen_lane);
  key(Qt::Key_H);
  EXPECT_FALSE(lanes().contains(chosen_lane->name));
}

// The settings and a project keep how lanes are arranged.
TEST_F(LanesTest, TheArrangementIsKept) {
  open(sample_run());
  point_at("compute");
  key(Qt::Key_P);
  key(Qt::Key_Down, Qt::AltModifier);
  point_at("all-gather");
  key(Qt::Key_H);
  key(Qt::Key_N);
  const LaneArrangement kept = scene().arrangement();
  EXPECT_FALSE(kept.isFirst());
  EXPECT_TRUE(kept.nested);
  EXPECT_EQ(kept.hidden, QStringList{"all-gather"});
  const QString path = folder_.path() + "/a.shardlens";
  ASSERT_TRUE(window_->saveProject(path));
  EXPECT_EQ(window_->project().lanes, kept);
  make();  // a new window with the same settings
  EXPECT_EQ(scene().arrangement(), kept);
  window_->timeline().arrange({});
  open(path.toStdString());
  EXPECT_EQ(scene().arrangement(), kept);
}

// Nested operators are shown below what the host worked on, each in its caller, and can be chosen.
TEST_F(LanesTest, NestedOperatorsAreAFlameChart) {
  open(pytorch_run("fsdp2-default"));
  EXPECT_FALSE(lanes().contains("nested operators"));
  key(Qt::Key_N);
  ASSERT_TRUE(lanes().contains("nested operators"));
  const RankData& rank = *window_->context().rank();
  size_t deepest = 0;
  std::optional<Band> inner;
  for (const Band& each : scene().layout().bands) {
    if (each.rank == 0 && each.name == "nested operators") {
      EXPECT_GE(each.lane, rank.lanes.size());
      deepest = std::max(deepest, each.row);
      inner = each.row == 1 && !inner ? std::optional(each) : inner;
    }
  }
  EXPECT_GT(deepest, 2);
  ASSERT_TRUE(inner);
  const LaneItem item = scene().lane(0, inner->lane).rows[1].items().front();
  window_->timeline().showInterval(window_->context().run()->shown(rank, {item.start, item.end}));
  const analysis::Interval shown = window_->context().run()->shown(rank, {item.start, item.end});
  const double x = (scene().axis.toPixel(shown.start) + scene().axis.toPixel(shown.end)) / 2 +
                   TimelineScene::kGutter;
  QTest::mouseClick(canvas(), Qt::LeftButton, {}, middle(*inner, static_cast<int>(x)));
  ASSERT_TRUE(chosen().item);
  EXPECT_EQ(chosen().item->ref, item.ref);
  ASSERT_TRUE(scene().place(*chosen().item));
  key(Qt::Key_N);
  EXPECT_FALSE(lanes().contains("nested operators"));
}

}  // namespace
}  // namespace shardlens::gui
