#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <QApplication>
#include <QFile>
#include <QLineEdit>
#include <QMessageBox>
#include <QProcess>
#include <QPushButton>
#include <QRegularExpression>
#include <QSettings>
#include <QTemporaryDir>
#include <QTest>

#include "gui/view/window/main_window.h"
#include "profiler/trace/kineto/kineto_writer.h"
#include "tests/gui/qt_test.h"

namespace shardlens::gui {

// How long a test waits for a window, in milliseconds: on a busy machine Qt's five seconds have
// passed before a window manager answered.
inline constexpr int kMostMilliseconds = 60'000;

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
    ASSERT_TRUE(QTest::qWaitForWindowExposed(window_.get(), kMostMilliseconds));
    // A window manager gives it the focus some time later; keys before that are lost.
    ASSERT_TRUE(QTest::qWaitForWindowActive(window_.get(), kMostMilliseconds));
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
        EXPECT_TRUE(QTest::qWaitForWindowActive(window_.get(), kMostMilliseconds));
      }
    }
    ASSERT_TRUE(wait_for([&] { return settled; }));
    QObject::disconnect(connection);
    window_->panels().flush();
    QApplication::processEvents();
  }
  // Writes a run into the test's folder; returns its path.
  std::string write_run(const std::vector<trace::Trace>& traces, const std::string& name) const {
    const std::filesystem::path directory = folder_.path().toStdString() + "/" + name;
    std::filesystem::create_directory(directory);
    for (const trace::Trace& each : traces) {
      trace::write_kineto(
          each, directory / ("rank" + std::to_string(*each.metadata.rank) + ".pt.trace.json"));
    }
    return directory.string();
  }
  // The sample's model on eight simulated GPUs, in the test's folder.
  QString simulated_ranks(const QString& name, const QStringList& options = {}) const {
    const QString out = folder_.path() + "/" + name;
    QProcess program;
    program.start(
        SHARDLENS_BIN_DIR "/shardlens",
        QStringList{"simulate", "--model", QString::fromStdString(sample_run()) + "/config.json",
                    "--hardware", "8xH100", "--out", out} +
            options);
    EXPECT_TRUE(program.waitForFinished(20'000));
    EXPECT_EQ(program.exitCode(), 0) << program.readAllStandardError().toStdString();
    return out;
  }
  // Replaces the program that captures by one that writes a step and copies the sample run to its
  // --out.
  void useProgramThatCopiesTheSample() {
    const QString program = folder_.path() + "/shardlens";
    QFile file(program);
    ASSERT_TRUE(file.open(QIODevice::WriteOnly));
    file.write(
        "#!/bin/sh\necho 'step 1/10  loss 3'\nwhile [ $# -gt 1 ]; do [ \"$1\" = --out ] && "
        "out=$2; shift; done\nmkdir -p \"$(dirname \"$out\")\"\ncp -r " +
        QByteArray::fromStdString(sample_run()) + " \"$out\"\n");
    file.setPermissions(QFile::ReadOwner | QFile::WriteOwner | QFile::ExeOwner);
    file.close();
    window_->runs().setProgram(program);
  }
  // Runs of Run plan are written into the test's folder, not into the user's own. The tests run in
  // another directory than the capture of the sample, so its tokens are another file.
  void runInTemporaryFolder() {
    for (QLineEdit* each : window_->panels().find("run").panel->findChildren<QLineEdit*>()) {
      if (each->accessibleName() == "Folder") {
        each->setText(folder_.path() + "/runs");
      } else if (each->accessibleName() == "Tokens") {
        each->setText("README.md");
      }
    }
  }
  // The number of actions that docs/use/window.md or bench/RESULTS.md has for a task; -1: neither
  // lists the task.
  struct Documented {
    int keys = -1, mouse = -1;
  };
  static Documented documented(const QString& task) {
    const QRegularExpression row(
        "^\\| " + QRegularExpression::escape(task) + " \\| (\\d+): [^|]+ \\| (\\d+): ",
        QRegularExpression::MultilineOption);
    for (const char* page : {"docs/use/window.md", "bench/RESULTS.md"}) {
      QFile file(QString(SHARDLENS_TEST_DATA) + "/../../" + page);
      EXPECT_TRUE(file.open(QIODevice::ReadOnly)) << page;
      const auto match = row.match(QString::fromUtf8(file.readAll()));
      if (match.hasMatch()) {
        return {match.captured(1).toInt(), match.captured(2).toInt()};
      }
    }
    return {};
  }

  QTemporaryDir folder_;
  std::unique_ptr<QSettings> settings_;
  std::unique_ptr<MainWindow> window_;
};

}  // namespace shardlens::gui
