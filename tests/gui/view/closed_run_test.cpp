// A closed run must leave nothing in memory, most of which a large trace takes.
#include <memory>
#include <string>

#include <QApplication>
#include <QComboBox>
#include <QInputDialog>
#include <QPointer>
#include <QTest>

#include "gui/view/timeline/timeline_view.h"
#include "tests/gui/view/window_test.h"

namespace shardlens::gui {
namespace {

class ClosedRunTest : public WindowTest {
 protected:
  // Opens `next` instead of the open run, which must be gone then.
  void openInstead(const std::string& next) {
    const std::weak_ptr<const RunData> before = window_->context().run();
    open(next);
    EXPECT_TRUE(wait_for([&] { return before.expired(); })) << "after " << next;
  }
};

// Lists that are no longer shown must let go of it too: exposed collectives by unit, and those that
// E walks through.
TEST_F(ClosedRunTest, ARunIsLetGo) {
  open(sample_run());
  QComboBox* rows_are = nullptr;
  for (QComboBox* box : window_->findChildren<QComboBox*>()) {
    rows_are = box->accessibleName() == "What a row is" ? box : rows_are;
  }
  ASSERT_NE(rows_are, nullptr);
  rows_are->setCurrentIndex(1);
  rows_are->setCurrentIndex(0);
  for (const std::string& next : {sample_run(), sample_run() + "/missing"}) {
    ASSERT_TRUE(wait_for([this] { return !window_->session().isBusy(); }));
    openInstead(next);
  }
  EXPECT_EQ(window_->context().run(), nullptr);
}

TEST_F(ClosedRunTest, ANoteIsForTheRunThatItsDialogWasOpenedFor) {
  open(sample_run());
  for (const std::string& next : {sample_run(), sample_run() + "/missing"}) {
    SCOPED_TRACE(next);
    ASSERT_TRUE(wait_for([this] { return !window_->session().isBusy(); }));
    window_->actions().trigger(QStringLiteral("go.note"));
    const QPointer<QInputDialog> dialog = window_->findChild<QInputDialog*>();
    ASSERT_NE(dialog, nullptr);
    openInstead(next);
    dialog->setTextValue("of the run before");
    dialog->accept();
    EXPECT_TRUE(window_->timeline().scene().bookmarks.empty());
    QTest::qWait(1);
    QApplication::sendPostedEvents(nullptr, QEvent::DeferredDelete);
    ASSERT_EQ(dialog, nullptr);
  }
}

// Qt 6.4 keeps style rules of deleted combo boxes, spin boxes and tables until no widget has a
// style sheet. With that of the window alone they can be dropped.
TEST_F(ClosedRunTest, OnlyTheWindowHasAStyleSheet) {
  open(sample_run());
  for (const QWidget* widget : QApplication::allWidgets()) {
    EXPECT_TRUE(widget == window_.get() || widget->styleSheet().isEmpty())
        << widget->metaObject()->className() << ": " << widget->styleSheet().toStdString();
  }
}

}  // namespace
}  // namespace shardlens::gui
