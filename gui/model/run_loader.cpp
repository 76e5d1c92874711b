#include "gui/model/run_loader.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/base/error.h"

namespace shardlens::gui {
namespace {

constexpr int kTickMilliseconds = 60;

}  // namespace

RunLoader::RunLoader(QObject* parent) : QObject(parent) {
  ticker_.setInterval(kTickMilliseconds);
  connect(&ticker_, &QTimer::timeout, this, &RunLoader::report);
}

RunLoader::~RunLoader() {
  if (job_ != nullptr) {
    job_->stopped = true;
  }
}

void RunLoader::work(Job& job) {
  try {
    trace::Run run = trace::Run::open(job.paths);
    job.analyzing = true;
    if (!job.stopped) {
      job.run = std::make_shared<const RunData>(std::move(run));
    }
  } catch (const std::bad_alloc&) {
    job.error = tr("This machine has not enough memory for the run.");
  } catch (const std::exception& error) {
    job.error = QString::fromStdString(error.what());
  }
}

void RunLoader::load(const std::vector<std::filesystem::path>& paths) {
  cancel();
  job_ = std::make_shared<Job>();
  job_->paths = paths;
  const std::shared_ptr<Job> job = job_;
  background_.run([job] { work(*job); }, [this, job] { finish(job); });
  ticker_.start();
  report();
}

void RunLoader::cancel() {
  if (job_ == nullptr) {
    return;
  }
  job_->stopped = true;
  job_.reset();
  ticker_.stop();
  emit cancelled();
}

void RunLoader::finish(const std::shared_ptr<Job>& job) {
  if (job != job_) {
    return;
  }
  job_.reset();
  ticker_.stop();
  if (job->run != nullptr) {
    emit loaded(job->run);
  } else {
    emit failed(job->error);
  }
}

void RunLoader::report() {
  if (job_ == nullptr) {
    return;
  }
  emit progress(
      -1,
      job_->analyzing
          ? tr("Analyzing")
          : tr("Reading %1").arg(QString::fromStdString(job_->paths.front().filename().string())));
}

}  // namespace shardlens::gui
