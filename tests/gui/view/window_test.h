#pragma once

#include <memory>
#include <string>

#include <QApplication>
#include <QMessageBox>
#include <QPushButton>
#include <QSettings>
#include <QTemporaryDir>
#include <QTest>

#include "gui/view/window/main_window.h"
#include "tests/gui/qt_test.h"

namespace shardlens::gui {

// A test with the main window, shown at kSize, with its settings in a temporary folder.
class WindowTest : public QtTest<QApplication> {
 protected:
  static constexpr QSize kSize{1280, 800};
  void SetUp() override {
    QtTest::SetUp();
    settings_ = std::make_unique<QSettings>(folder_.path() + "/settings.ini", QSettings::IniFormat);
    make();
  }
  void TearDown() override {
    window_.reset();
    QtTest::TearDown();
  }
  void make() {
    window_ = std::make_unique<MainWindow>(*settings_);
    window_->resize(kSize);
    window_->show();
    ASSERT_TRUE(QTest::qWaitForWindowExposed(window_.get()));
    // A window manager gives it the focus some time later; keys before that are lost.
    ASSERT_TRUE(QTest::qWaitForWindowActive(window_.get()));
  }
  // What the test made before, such as a bookmark, is discarded.
  void open(const std::string& path) {
    bool settled = false;
    const auto connection =
        QObject::connect(window_.get(), &MainWindow::settled, [&] { settled = true; });
    window_->open({QString::fromStdString(path)});
    for (QMessageBox* box : window_->findChildren<QMessageBox*>()) {
      if (box->isVisible() && box->button(QMessageBox::Discard) != nullptr) {
        box->button(QMessageBox::Discard)->click();
        QApplication::processEvents();
        window_->activateWindow();  // as a window manager does when a dialog closes
        EXPECT_TRUE(QTest::qWaitForWindowActive(window_.get()));
      }
    }
    ASSERT_TRUE(wait_for([&] { return settled; }));
    QObject::disconnect(connection);
    window_->panels().flush();
    QApplication::processEvents();
  }

  QTemporaryDir folder_;
  std::unique_ptr<QSettings> settings_;
  std::unique_ptr<MainWindow> window_;
};

}  // namespace shardlens::gui
