#include <set>

#include <QAbstractItemView>
#include <QDockWidget>

#include "gui/view/timeline/timeline_view.h"
#include "tests/gui/view/window_test.h"

namespace shardlens::gui {
namespace {

class KeyboardTest : public WindowTest {};

// Without a mouse: Tab and Shift+Tab reach everything that is shown and return to the start, and a
// panel that is opened by its command gets the focus.
TEST_F(KeyboardTest, TheKeyboardReachesEverything) {
  open(sample_run());
  window_->activateWindow();
  ASSERT_TRUE(QTest::qWaitForWindowActive(window_.get(), kMostMilliseconds));
  for (const Panels::Docked& panel : window_->panels().all()) {
    const QString id = panel.dock->objectName();
    ASSERT_TRUE(window_->actions().trigger("panel." + id)) << id.toStdString();
    QApplication::processEvents();
    ASSERT_NE(QApplication::focusWidget(), nullptr) << id.toStdString();
    EXPECT_TRUE(panel.dock->isAncestorOf(QApplication::focusWidget())) << id.toStdString();
    for (const Qt::Key key : {Qt::Key_Tab, Qt::Key_Backtab}) {
      std::set<const QWidget*> reached;
      const QWidget* first = QApplication::focusWidget();
      do {
        QWidget* at = QApplication::focusWidget();
        ASSERT_TRUE(reached.insert(at).second)
            << id.toStdString() << ": a circle at " << at->accessibleName().toStdString();
        for (int i = 0; i < 3 && QApplication::focusWidget() == at; ++i) {  // links of a label
          QTest::keyClick(at, key);
        }
        ASSERT_NE(QApplication::focusWidget(), at)
            << id.toStdString() << ": caught at " << at->accessibleName().toStdString();
      } while (QApplication::focusWidget() != first);
      for (const QWidget* widget : window_->findChildren<QWidget*>()) {
        if (widget->focusPolicy() & Qt::TabFocus && !widget->visibleRegion().isEmpty() &&
            widget->isEnabled() && widget->focusProxy() == nullptr && !widget->inherits("QLabel")) {
          EXPECT_TRUE(reached.contains(widget))
              << id.toStdString() << ": " << widget->metaObject()->className() << ' '
              << widget->accessibleName().toStdString();
        }
      }
    }
  }
}

// Moving the focus to a table selects nothing in it; an arrow key does.
TEST_F(KeyboardTest, TabIntoATableChoosesNothing) {
  open(sample_run());
  window_->activateWindow();
  ASSERT_TRUE(QTest::qWaitForWindowActive(window_.get(), kMostMilliseconds));
  const Selection before = window_->context().current();
  for (const Panels::Docked& panel : window_->panels().all()) {
    const QString id = panel.dock->objectName();
    if (id != "modules" && id != "exposed" && id != "order") {
      continue;
    }
    window_->actions().trigger("panel." + id);
    window_->timeline().setFocus();
    panel.panel->view()->setFocus(Qt::TabFocusReason);
    QApplication::processEvents();
    EXPECT_TRUE(panel.panel->view()->hasFocus()) << id.toStdString();
    EXPECT_EQ(window_->context().current(), before) << id.toStdString();
    QTest::keyClick(panel.panel->view(), Qt::Key_Down);
    QTest::keyClick(panel.panel->view(), Qt::Key_Up);  // the first row, which has a unit or an item
    EXPECT_NE(window_->context().current(), before) << id.toStdString();
    window_->context().select(before);
    window_->panels().flush();
  }
}

// Every widget that takes the keyboard focus has an accessible name.
TEST_F(KeyboardTest, WhatTakesTheFocusHasAName) {
  open(sample_run());
  for (const QWidget* widget : window_->findChildren<QWidget*>()) {
    const bool own = widget->focusPolicy() & Qt::TabFocus && widget->isVisible() &&
                     !widget->objectName().startsWith("qt_");
    if (own && !widget->inherits("QTabBar") && !widget->inherits("QLabel") &&
        !widget->inherits("QAbstractButton")) {
      EXPECT_FALSE(widget->accessibleName().isEmpty())
          << widget->metaObject()->className() << ' ' << widget->objectName().toStdString();
    }
  }
}

}  // namespace
}  // namespace shardlens::gui
