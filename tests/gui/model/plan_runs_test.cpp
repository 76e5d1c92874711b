#include "gui/model/compare/plan_runs.h"

#include <algorithm>
#include <cmath>

#include <QDir>
#include <QFile>
#include <QFileInfo>
#include <QProcess>
#include <QTemporaryDir>

#include "gui/model/what_if/run_script.h"
#include "tests/gui/qt_test.h"

namespace shardlens::gui {
namespace {

// Runs scripts instead of `shardlens`: they write the sample run, fail or wait. The engine itself
// is in capture_test.cpp.
class PlanRunsTest : public QtTest<QCoreApplication> {
 protected:
  void SetUp() override {
    QtTest::SetUp();
    session_.start(sample(), {sample_run()});
    ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
    ASSERT_EQ(runs_->why(), "");
  }
  QString script(const QString& name, const QByteArray& text) {
    const QString path = folder_.path() + "/" + name;
    QFile file(path);
    EXPECT_TRUE(file.open(QIODevice::WriteOnly | QIODevice::Truncate));
    file.write("#!/bin/sh\n" + text);
    file.setPermissions(QFile::ReadOwner | QFile::WriteOwner | QFile::ExeOwner);
    return path;
  }
  // A capture that writes the sample run, and what it was started with.
  QString capture() {
    return script("shardlens", QByteArray("printf '%s\\n' \"$@\" > ") + folder_.path().toUtf8() +
                                   "/arguments\necho 'step 1/2  loss 3'\nwhile [ $# -gt 1 ]; do "
                                   "[ \"$1\" = --out ] && out=$2; [ \"$1\" = --plan ] && plan=$2; "
                                   "shift; done\ncp -r " +
                                   QByteArray::fromStdString(sample_run()) +
                                   " \"$out\"\ncp \"$plan\" " + folder_.path().toUtf8() +
                                   "/plan.json\n");
  }
  QString read(const QString& name) {
    QFile file(folder_.path() + "/" + name);
    EXPECT_TRUE(file.open(QIODevice::ReadOnly)) << name.toStdString();
    return QString::fromUtf8(file.readAll());
  }
  void start(const QString& program) {
    runs_->setProgram(program);
    CaptureOptions options = runs_->options();
    options.tokens = "README.md";
    options.out = folder_.path() + "/run";
    options.steps = 2;
    runs_->start("a run", options);
  }
  void finish() {
    ASSERT_TRUE(wait_for([&] { return !runs_->isBusy(); }));
  }
  QTemporaryDir folder_;
  PlanSession session_;
  std::unique_ptr<PlanRuns> runs_ = std::make_unique<PlanRuns>(session_);
};

// The sample run is the run of its own plan, so its error is that of the session's baseline.
TEST_F(PlanRunsTest, TheRunIsMeasuredNextToItsPrediction) {
  std::vector<size_t> measured;
  QObject::connect(runs_.get(), &PlanRuns::measured, [&](size_t run) { measured.push_back(run); });
  start(capture());
  EXPECT_TRUE(runs_->isRunning());
  finish();
  ASSERT_EQ(measured, std::vector<size_t>{0});
  const PlanRun& run = runs_->list().front();
  ASSERT_EQ(run.stage, PlanRun::Stage::kMeasured) << run.message.toStdString();
  EXPECT_EQ(run.version, "v0 as it is");
  EXPECT_EQ(run.duration, session_.baseline()->measured);
  EXPECT_EQ(run.predicted, session_.current()->prediction.figures);
  ASSERT_TRUE(run.measured.has_value());
  EXPECT_EQ(*run.measured, session_.baselineParts()->measured);
  double sum = 0;
  for (const double part : run.errors()) {
    sum += part;
  }
  EXPECT_NEAR(sum, run.error(), 1e-9);
  EXPECT_EQ(run.run->ranks.size(), sample()->ranks.size());
  // The flags are those that the open run was captured with: one rank of an emulated world of
  // eight.
  const QStringList arguments = read("arguments").split('\n');
  const auto value = [&](const char* flag) { return arguments.value(arguments.indexOf(flag) + 1); };
  EXPECT_EQ(arguments.front(), "capture");
  EXPECT_EQ(value("--world-size"), "8");
  EXPECT_EQ(value("--backend"), "emulated");
  EXPECT_EQ(value("--hardware"), "ab:5000:inf");
  EXPECT_EQ(value("--batch"), "4");
  EXPECT_EQ(value("--seq"), "128");
  EXPECT_TRUE(QFileInfo(value("--model")).isFile());
  EXPECT_FALSE(arguments.contains("--strategy"));
  EXPECT_EQ(plan::load_plan(folder_.path().toStdString() + "/plan.json"), [&] {
    plan::Plan plan = session_.state().plan;
    plan.source = folder_.path().toStdString() + "/plan.json";
    return plan;
  }());
}

TEST_F(PlanRunsTest, FailuresAreShownAsTheyAre) {
  QStringList failures;
  QObject::connect(runs_.get(), &PlanRuns::failed,
                   [&](const QString& message) { failures.append(message); });
  start(script("dead", "echo '[rank 1] was killed by signal 9 in step 3' >&2; exit 4"));
  finish();
  start("/no/such/shardlens");
  finish();
  start(script("empty", "exit 0"));  // says that all is well, but wrote nothing
  finish();
  ASSERT_EQ(failures.size(), 3);
  EXPECT_EQ(failures[0], "[rank 1] was killed by signal 9 in step 3");
  EXPECT_TRUE(failures[1].startsWith("/no/such/shardlens")) << failures[1].toStdString();
  EXPECT_TRUE(failures[2].contains("/run")) << failures[2].toStdString();
  ASSERT_EQ(runs_->list().size(), 3U);
  for (const PlanRun& run : runs_->list()) {
    EXPECT_EQ(run.stage, PlanRun::Stage::kFailed);
  }
}

TEST_F(PlanRunsTest, CancelEndsItAndSoDoesAnotherRun) {
  start(script("slow", "echo 'step 1/100'; exec sleep 60"));
  ASSERT_TRUE(wait_for([&] { return runs_->list().front().step == 1; }));
  EXPECT_EQ(runs_->list().front().steps, 100);
  runs_->cancel();
  finish();
  EXPECT_EQ(runs_->list().front().stage, PlanRun::Stage::kStopped);
  start(script("slow", "echo 'step 1/100'; exec sleep 60"));
  ASSERT_TRUE(wait_for([&] { return runs_->list().back().step == 1; }));
  session_.stop();
  finish();
  EXPECT_NE(runs_->why(), "");
}

// The capture ends at the second signal, as those of the engine do.
TEST_F(PlanRunsTest, EndsWithItsOwner) {
  start(script("stubborn",
               "trap 'trap - TERM' TERM; echo 'step 1/100'; while :; do sleep 0.05; done"));
  ASSERT_TRUE(wait_for([&] { return runs_->list().front().step == 1; }));
  runs_.reset();
  const QTemporaryDir still;  // the destructor returned
  EXPECT_TRUE(still.isValid());
}

TEST_F(PlanRunsTest, AModelWithoutARunTakesItsConfig) {
  session_.start(plan::load_model_config(sample_run() + "/config.json"), "8xH100");
  ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
  EXPECT_EQ(runs_->why(), "");
  EXPECT_EQ(runs_->options().nproc, 8);
  EXPECT_EQ(runs_->options().backend, "gloo");
  EXPECT_TRUE(runs_->options().model.endsWith("/config.json"));
  const QString text = runs_->script(runs_->options());
  EXPECT_TRUE(text.contains("--backend nccl")) << text.toStdString();
}

TEST_F(PlanRunsTest, PyTorchsTracesHaveNoModelToRun) {
  const std::string path = pytorch_run("fsdp2-accumulate");
  session_.start(open_run(path), {path});
  ASSERT_TRUE(wait_for([&] { return session_.current() != nullptr; }));
  EXPECT_TRUE(runs_->why().contains("config.json") || runs_->why().contains("cannot run"))
      << runs_->why().toStdString();
}

// The script is run by a shell, with programs of the names that it calls.
TEST_F(PlanRunsTest, TheScriptWritesThePlanAndCallsTheProgram) {
  CaptureOptions options = runs_->options();
  options.tokens = "it's text.txt";
  options.out = "run 1";
  const QByteArray print =
      "printf '%s\\n' \"$0\" \"$@\" > " + folder_.path().toUtf8() + "/called\n";
  script("shardlens", print);
  script("torchrun", print);
  const auto called = [&](int64_t ranks) {
    script("it.sh", "").clear();
    QFile file(folder_.path() + "/it.sh");
    EXPECT_TRUE(file.open(QIODevice::WriteOnly | QIODevice::Truncate));
    file.write(run_script(options, "v1 100 % faster?", session_.planJson(), ranks, 8).toUtf8());
    file.close();
    QProcess shell;
    shell.setWorkingDirectory(folder_.path());
    QProcessEnvironment environment = QProcessEnvironment::systemEnvironment();
    environment.insert("PATH", folder_.path() + ":" + environment.value("PATH"));
    environment.insert("MASTER", "node0");
    shell.setProcessEnvironment(environment);
    shell.start("/bin/sh", {"it.sh"});
    EXPECT_TRUE(shell.waitForFinished(20'000));
    EXPECT_EQ(shell.exitCode(), 0) << shell.readAllStandardError().toStdString();
    return read("called").split('\n');
  };
  options.backend = "nccl";
  options.device = "cuda";
  QStringList words = called(8);
  EXPECT_TRUE(words.front().endsWith("/shardlens"));
  EXPECT_EQ(words[1], "capture");
  EXPECT_EQ(words.value(words.indexOf("--tokens") + 1), "it's text.txt");
  EXPECT_EQ(words.value(words.indexOf("--out") + 1), "run 1");
  EXPECT_EQ(words.value(words.indexOf("--nproc") + 1), "8");
  EXPECT_EQ(words.value(words.indexOf("--plan") + 1), "plan.json");
  words = called(32);
  EXPECT_TRUE(words.front().endsWith("/torchrun"));
  EXPECT_EQ(words.value(words.indexOf("--nnodes") + 1), "4");
  EXPECT_EQ(words.value(words.indexOf("--rdzv-endpoint") + 1), "node0:29500");
  EXPECT_EQ(words.value(words.indexOf("--no-python") + 1), "shardlens-worker");
  plan::Plan expected = session_.state().plan;
  expected.source = folder_.path().toStdString() + "/plan.json";
  EXPECT_EQ(plan::load_plan(folder_.path().toStdString() + "/plan.json"), expected);
}

TEST(RunScriptTest, NamesAreThoseOfDirectories) {
  EXPECT_EQ(directory_name("v1 Prefetch in forward: 2"), "v1-prefetch-in-forward-2");
  EXPECT_EQ(directory_name("v1 prefetch-2.json"), "v1-prefetch-2");
  EXPECT_EQ(directory_name("../../etc"), "etc");
  EXPECT_EQ(directory_name("…"), "run");
  plan::StepSettings step;
  EXPECT_EQ(step_flags(step), QStringList());
  step.accumulate = 4;
  step.sync_every_microbatch = false;
  step.optimizer = plan::Optimizer::kSgd;
  step.momentum = 0;
  step.clip = 0.5;
  EXPECT_EQ(step_flags(step).join(' '),
            "--accumulate 4 --optimizer sgd --momentum 0 --clip 0.5 --no-sync");
}

}  // namespace
}  // namespace shardlens::gui
