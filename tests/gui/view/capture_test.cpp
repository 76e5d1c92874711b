#include <filesystem>
#include <fstream>

#include <QApplication>
#include <QDir>
#include <QFileInfo>
#include <QProgressBar>
#include <QPushButton>
#include <QSettings>
#include <QTemporaryDir>
#include <QTest>

#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/capture_dialog.h"
#include "gui/view/window/main_window.h"
#include "tests/gui/qt_test.h"

namespace shardlens::gui {
namespace {

namespace fs = std::filesystem;

// The dialog with the real `shardlens capture`: two ranks on this machine.
class CaptureTest : public QtTest<QApplication> {
 protected:
  static constexpr std::chrono::seconds kLongest{90};

  void SetUp() override {
    QtTest::SetUp();
    if (!QFileInfo::exists(SHARDLENS_BIN_DIR "/shardlens-worker")) {
      GTEST_SKIP() << "built without the engine: there is no shardlens-worker";
    }
    settings_ = std::make_unique<QSettings>(folder_.path() + "/settings.ini", QSettings::IniFormat);
    window_ = std::make_unique<MainWindow>(*settings_);
    window_->setUnattended();
    window_->show();
    dialog_ = new CaptureDialog(SHARDLENS_BIN_DIR "/shardlens", *settings_, window_.get());
    CaptureOptions options;
    options.model = QString::fromStdString(sample_run() + "/config.json");
    options.tokens = QString::fromStdString(sample_run() + "/../README.md");
    options.out = folder_.path() + "/run";
    options.steps = 4;
    options.batch = 1;
    options.seq = 32;
    dialog_->setOptions(options);
    dialog_->show();
  }
  void TearDown() override {
    window_.reset();
    QtTest::TearDown();
  }
  void click(const QString& title) {
    for (QPushButton* button : dialog_->findChildren<QPushButton*>()) {
      if (button->text() == title) {
        QTest::mouseClick(button, Qt::LeftButton);
        return;
      }
    }
    FAIL() << "no button " << title.toStdString();
  }
  QProgressBar& bar() { return *dialog_->findChild<QProgressBar*>(); }
  // Processes whose command line names the run's directory.
  int processes() {
    int count = 0;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      std::ifstream in(entry.path() / "cmdline", std::ios::binary);
      const std::string text((std::istreambuf_iterator<char>(in)), {});
      count += text.find(folder_.path().toStdString() + "/run") != std::string::npos ? 1 : 0;
    }
    return count;
  }

  QTemporaryDir folder_;
  std::unique_ptr<QSettings> settings_;
  std::unique_ptr<MainWindow> window_;
  CaptureDialog* dialog_ = nullptr;
};

TEST_F(CaptureTest, TellsItsStepsAndTheRunIsOpened) {
  QString captured;
  int shown = 0;
  QObject::connect(dialog_, &CaptureDialog::captured, [&](const QString& out) { captured = out; });
  QObject::connect(&dialog_->job(), &CaptureJob::progress, [&](int step, int steps) {
    EXPECT_EQ(steps, 4);
    EXPECT_EQ(bar().value(), step);
    EXPECT_TRUE(bar().isVisible());
    ++shown;
  });
  click("Start");
  ASSERT_TRUE(
      wait_until([&] { return !captured.isEmpty() || !dialog_->job().isRunning(); }, kLongest));
  ASSERT_EQ(captured, folder_.path() + "/run") << dialog_->message().toStdString();
  EXPECT_EQ(shown, 4) << dialog_->message().toStdString();
  window_->open({captured});
  ASSERT_TRUE(wait_until([&] { return window_->context().run() != nullptr; }, kLongest))
      << window_->lastError().toStdString();
  const RunData& run = *window_->context().run();
  EXPECT_EQ(run.ranks.size(), 2U);
  EXPECT_EQ(run.ranks.front()->figures.steps.size(), 4U);
  EXPECT_TRUE(run.run.planned.has_value());
  EXPECT_EQ(processes(), 0);
}

// The sample's own plan, run again by the engine as it was captured: the run is B, next to its
// prediction, and the errors of its parts sum to that of the step.
TEST_F(CaptureTest, AVersionOfThePlanIsRunAndCompared) {
  window_->open({QString::fromStdString(sample_run())});
  ASSERT_TRUE(wait_until([&] { return window_->session().current() != nullptr; }, kLongest));
  PlanRuns& runs = window_->runs();
  runs.setProgram(SHARDLENS_BIN_DIR "/shardlens");
  ASSERT_EQ(runs.why(), "");
  CaptureOptions options = runs.options();
  options.tokens = QString::fromStdString(sample_run() + "/../README.md");
  options.out = folder_.path() + "/run";
  options.steps = 3;
  options.more << "--warmup"
               << "1";
  runs.start("again", options);
  ASSERT_TRUE(wait_until([&] { return !runs.isBusy(); }, kLongest));
  const PlanRun& run = runs.list().front();
  ASSERT_EQ(run.stage, PlanRun::Stage::kMeasured) << run.message.toStdString();
  EXPECT_EQ(run.step, 3);
  EXPECT_EQ(run.run->ranks.front()->figures.steps.size(), 2U);
  ASSERT_TRUE(run.measured.has_value());
  double sum = 0;
  for (const double part : run.errors()) {
    sum += part;
  }
  EXPECT_NEAR(sum, run.error(), 1e-5);  // parts are whole nanoseconds
  ASSERT_TRUE(wait_until([&] { return window_->compare().isOpen(); }, kLongest))
      << window_->lastError().toStdString();
  EXPECT_EQ(window_->compare().b(), run.run);
  EXPECT_EQ(processes(), 0);
  // The message is the engine's own.
  options.seq = 100'000;
  options.out = folder_.path() + "/run2";
  runs.start("too long", options);
  ASSERT_TRUE(wait_until([&] { return !runs.isBusy(); }, kLongest));
  EXPECT_EQ(runs.list().back().stage, PlanRun::Stage::kFailed);
  EXPECT_TRUE(runs.list().back().message.contains("--seq"))
      << runs.list().back().message.toStdString();
}

TEST_F(CaptureTest, StopEndsAllItsProcesses) {
  CaptureOptions options = dialog_->options();
  options.steps = 100;
  dialog_->setOptions(options);
  click("Start");
  ASSERT_TRUE(wait_until([&] { return bar().maximum() == 100 && bar().value() > 0; }, kLongest))
      << dialog_->message().toStdString();
  EXPECT_GT(processes(), 0);
  click("Stop");
  ASSERT_TRUE(wait_until([&] { return dialog_->message().endsWith("Stopped."); }, kLongest))
      << dialog_->message().toStdString();
  EXPECT_TRUE(wait_until([&] { return processes() == 0; }, kLongest));
  EXPECT_TRUE(dialog_->isVisible());
}

}  // namespace
}  // namespace shardlens::gui
