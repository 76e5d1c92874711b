#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include <gtest/gtest.h>

#include <QAbstractItemModelTester>
#include <QCoreApplication>
#include <QString>
#include <QStringList>

#include "gui/model/base/qt_messages.h"
#include "gui/model/base/wait.h"
#include "gui/model/run/run_data.h"
#include "profiler/analysis/recover/recorded_program.h"
#include "profiler/trace/run.h"

namespace shardlens::gui {

// A test with a Qt application. Every warning that Qt prints is a test failure.
template <class Application>
class QtTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    qputenv("QT_QPA_PLATFORM",
            qEnvironmentVariable("SHARDLENS_TEST_PLATFORM", "offscreen").toUtf8());
    static int argc = 1;
    static char name[] = "test";
    static char* argv[] = {name, nullptr};
    if (QCoreApplication::instance() == nullptr) {
      new Application(argc, argv);  // never deleted: Qt needs it to outlive everything else
    }
  }
  void SetUp() override { qInstallMessageHandler(&QtTest::fail); }
  void TearDown() override { qInstallMessageHandler(nullptr); }

  static bool wait_for(const std::function<bool()>& done) {
    return wait_until(done, std::chrono::seconds(20));
  }

 private:
  static void fail(QtMsgType type, const QMessageLogContext& /*context*/, const QString& message) {
    if (type != QtDebugMsg && type != QtInfoMsg && !is_platform_notice(message)) {
      ADD_FAILURE() << "Qt: " << message.toStdString();
    }
  }
};

inline std::string sample_run() {
  return std::string(SHARDLENS_TEST_DATA) + "/../../traces/llama-emulated8";
}
inline std::string pytorch_run(const std::string& name) {
  return std::string(SHARDLENS_TEST_DATA) + "/pytorch_traces/" + name;
}

// Reads a run as the app does.
inline RunPointer open_run(const std::filesystem::path& path) {
  return std::make_shared<const RunData>(analysis::open_run(std::span(&path, 1)));
}

// The sample run, read once.
inline RunPointer sample() {
  static const RunPointer kRun = open_run(sample_run());
  return kRun;
}

}  // namespace shardlens::gui
