#include "gui/model/run/capture_job.h"

#include <QFile>
#include <QTemporaryDir>

#include "tests/gui/qt_test.h"

namespace shardlens::gui {
namespace {

// Runs scripts instead of `shardlens` and checks how the job handles their output and exit.
class CaptureJobTest : public QtTest<QCoreApplication> {
 protected:
  void SetUp() override {
    QtTest::SetUp();
    QObject::connect(&job_, &CaptureJob::progress,
                     [this](int step, int steps) { steps_.emplace_back(step, steps); });
    QObject::connect(&job_, &CaptureJob::finished,
                     [this](const QString& out) { end_ = "finished " + out; });
    QObject::connect(&job_, &CaptureJob::failed,
                     [this](const QString& why) { end_ = "failed " + why; });
    QObject::connect(&job_, &CaptureJob::cancelled, [this] { end_ = "cancelled"; });
  }
  QString script(const QByteArray& text) {
    const QString path = folder_.path() + "/shardlens";
    QFile file(path);
    EXPECT_TRUE(file.open(QIODevice::WriteOnly | QIODevice::Truncate));
    file.write("#!/bin/sh\n" + text);
    file.setPermissions(QFile::ReadOwner | QFile::WriteOwner | QFile::ExeOwner);
    return path;
  }
  QTemporaryDir folder_;
  CaptureJob job_;
  std::vector<std::pair<int, int>> steps_;
  QString end_;
};

TEST_F(CaptureJobTest, TellsStepsAndWhereTheRunIs) {
  CaptureOptions options;
  options.model = "m odel";
  options.out = "/somewhere";
  options.nproc = 4;
  job_.start(
      script(
          "echo \"$3\"; echo 'step 1/2  loss 3'; printf 'step 2/'; printf '2  loss 2\\n'; exit 0"),
      options);
  QStringList lines;
  QObject::connect(&job_, &CaptureJob::line, [&](const QString& text) { lines.append(text); });
  ASSERT_TRUE(wait_for([&] { return !end_.isEmpty(); }));
  EXPECT_EQ(end_, "finished /somewhere");
  EXPECT_EQ(steps_, (std::vector<std::pair<int, int>>{{1, 2}, {2, 2}}));
  EXPECT_EQ(lines.front(), "m odel");
  EXPECT_FALSE(job_.isRunning());
}

TEST_F(CaptureJobTest, AFailureSaysWhatItPrinted) {
  job_.start(script("echo 'config.json: no such file' >&2; exit 3"), {});
  ASSERT_TRUE(wait_for([&] { return !end_.isEmpty(); }));
  EXPECT_EQ(end_, "failed config.json: no such file");
  end_.clear();
  job_.start(script("exit 4"), {});
  ASSERT_TRUE(wait_for([&] { return !end_.isEmpty(); }));
  EXPECT_TRUE(end_.contains("code 4")) << end_.toStdString();
}

TEST_F(CaptureJobTest, CancelEndsIt) {
  job_.start(script("echo 'step 1/100'; exec sleep 60"), {});
  ASSERT_TRUE(wait_for([&] { return !steps_.empty(); }));
  EXPECT_TRUE(job_.isRunning());
  job_.cancel();
  job_.cancel();
  ASSERT_TRUE(wait_for([&] { return !end_.isEmpty(); }));
  EXPECT_EQ(end_, "cancelled");
}

TEST_F(CaptureJobTest, AProgramThatIsNotThereIsAMessage) {
  job_.start("/no/such/shardlens", {});
  ASSERT_TRUE(wait_for([&] { return !end_.isEmpty(); }));
  EXPECT_TRUE(end_.startsWith("failed /no/such/shardlens")) << end_.toStdString();
}

TEST_F(CaptureJobTest, EndsWithItsOwner) {
  CaptureJob job;
  job.start(script("exec sleep 60"), {});
  ASSERT_TRUE(wait_for([&] { return job.isRunning(); }));
}

TEST_F(CaptureJobTest, AnEmulatedWorldIsOneProcess) {
  CaptureOptions options;
  EXPECT_EQ(options.arguments().mid(options.arguments().size() - 2), (QStringList{"--nproc", "2"}));
  options.backend = "emulated";
  EXPECT_TRUE(options.arguments().contains("--world-size"));
  EXPECT_FALSE(options.arguments().contains("--nproc"));
}

}  // namespace
}  // namespace shardlens::gui
