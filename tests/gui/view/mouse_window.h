#pragma once

#include <algorithm>
#include <stdexcept>

#include <QAbstractItemView>
#include <QTest>

#include "gui/view/timeline/timeline_view.h"
#include "tests/gui/view/window_test.h"

namespace shardlens::gui {

// The window used with a mouse: every click goes to the widget under the pointer.
class MouseTest : public WindowTest {
 protected:
  TimelineScene& scene() { return window_->timeline().scene(); }
  QWidget* canvas() { return window_->timeline().viewport(); }
  const Selection& chosen() { return window_->context().current(); }

  // Scrolls to a band of the timeline and returns its middle; x in pixels of the widget.
  QPoint on(TimelineLayout::Band::Kind kind, size_t rank, int x) {
    for (const TimelineLayout::Band& band : scene().layout().bands) {
      if (band.kind == kind && band.rank == rank) {
        window_->timeline().scrollBy(-1'000'000);
        window_->timeline().scrollBy(static_cast<int>(band.top) - 20);
        return {x, static_cast<int>(TimelineScene::kHeader + band.top + band.height / 2 -
                                    scene().scroll)};
      }
    }
    throw std::runtime_error("no such band");
  }
  QAbstractItemView& shown(const QString& panel) {
    window_->actions().trigger("panel." + panel);
    QApplication::processEvents();
    window_->panels().flush();
    QApplication::processEvents();
    return *window_->panels().find(panel).panel->view();
  }
  QPoint at(QAbstractItemView& view, const QModelIndex& index) {
    view.scrollTo(index);
    QApplication::processEvents();
    const QRect area = view.visualRect(index).intersected(view.viewport()->rect());
    EXPECT_FALSE(area.isEmpty());
    return {area.left() + std::min(30, area.width() / 2), area.center().y()};
  }
  void click(QAbstractItemView& view, const QModelIndex& index) {
    QTest::mouseClick(view.viewport(), Qt::LeftButton, {}, at(view, index));
    settle();
  }
  // Like a user: two clicks, with timers running between them.
  void double_click(QAbstractItemView& view, const QModelIndex& index) {
    const QPoint where = at(view, index);
    QTest::mouseClick(view.viewport(), Qt::LeftButton, {}, where);
    settle();
    QTest::mouseDClick(view.viewport(), Qt::LeftButton, {}, where);
    QTest::mouseRelease(view.viewport(), Qt::LeftButton, {}, where);
    settle();
  }
  void settle() {
    window_->panels().flush();
    QApplication::processEvents();
  }
};

}  // namespace shardlens::gui
