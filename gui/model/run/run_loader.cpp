#include "gui/model/run/run_loader.h"

#include <algorithm>
#include <exception>
#include <utility>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "core/base/error.h"
#include "gui/model/run/run_preview.h"
#include "profiler/analysis/recover/recorded_program.h"
#include "profiler/check/baseline_file.h"
#include "profiler/trace/kineto/device_excerpt.h"

namespace shardlens::gui {
namespace {

constexpr int kTickMilliseconds = 60;

// Analyzing fragments the heaps of several threads: on large runs by a tenth of the memory kept.
// The run that was open before leaves its memory too.
void give_back_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace

std::vector<std::filesystem::path> paths_of(const QStringList& paths) {
  std::vector<std::filesystem::path> out;
  for (const QString& path : paths) {
    out.emplace_back(path.toStdString());
  }
  return out;
}

std::vector<std::vector<std::filesystem::path>> runs_of(
    const std::vector<std::filesystem::path>& paths) {
  std::vector<std::vector<std::filesystem::path>> several;
  for (const std::filesystem::path& path : paths) {
    const std::vector<std::filesystem::path> runs = check::run_paths(path);
    if (runs.front() != path) {
      for (const std::filesystem::path& run : runs) {
        several.push_back({run});
      }
    }
  }
  if (several.empty()) {
    several.push_back(paths);
  }
  return several;
}

RunLoader::RunLoader(QObject* parent) : QObject(parent) {
  ticker_.setInterval(kTickMilliseconds);
  connect(&ticker_, &QTimer::timeout, this, &RunLoader::report);
}

RunLoader::~RunLoader() {
  if (job_ != nullptr) {
    job_->progress.stop = true;
  }
}

std::optional<size_t> RunLoader::Job::wants(const trace::Trace& so_far,
                                            size_t host_only,
                                            bool whole) {
  if (preview_from == 0 || wanted) {
    return std::nullopt;
  }
  const size_t first = first_of_part(so_far, host_only, preview_from);
  const ReadPart so_much{so_far.events.size() - first, whole, progress.bytes, progress.total,
                         first};
  if (!is_worth_showing(so_much, preview_from)) {
    return std::nullopt;
  }
  if (!lacks_device(so_far)) {
    return wanted.exchange(true) ? std::nullopt : std::optional(first);
  }
  if (trace::allows_excerpt(so_far.metadata.source) && !wanted.exchange(true)) {
    const std::lock_guard lock(mutex);
    picture = std::filesystem::path(so_far.metadata.source);
  }
  return std::nullopt;
}

void RunLoader::Job::take(trace::Trace read) {
  const std::lock_guard lock(mutex);
  picture = std::move(read);
}

RunLoader::Job::Picture RunLoader::Job::taken() {
  const std::lock_guard lock(mutex);
  return std::exchange(picture, {});
}

void RunLoader::work(Job& job) {
  try {
    trace::ReadOptions options;
    options.progress = &job.progress;
    job.progress.parts = &job;
    trace::Run run = analysis::open_run(runs_of(job.paths).front(), options);
    job.analyzing = true;
    job.run = std::make_shared<const RunData>(std::move(run), &job.progress);
  } catch (const std::bad_alloc&) {
    job.error = tr("This machine does not have enough memory for the run.");
  } catch (const std::exception& error) {
    job.error = QString::fromStdString(error.what());
  }
}

void RunLoader::load(const std::vector<std::filesystem::path>& paths) {
  cancel();
  job_ = std::make_shared<Job>();
  job_->paths = paths;
  job_->preview_from = preview_from_;
  const std::shared_ptr<Job> job = job_;
  background_.run([job] { work(*job); }, [this, job] { finish(job); });
  ticker_.start();
  report();
}

void RunLoader::cancel() {
  if (job_ == nullptr) {
    return;
  }
  job_->progress.stop = true;
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
    background_.run(give_back_memory, [] {});
  } else {
    emit failed(job->error);
  }
}

void RunLoader::makePreview() {
  // A std::function is copied.
  const auto picture = std::make_shared<Job::Picture>(job_->taken());
  if (std::holds_alternative<std::monostate>(*picture)) {
    return;
  }
  const std::shared_ptr<Job> job = job_;
  background_.run(
      [job, picture] {
        try {
          auto* part = std::get_if<trace::Trace>(picture.get());
          std::optional<trace::Trace> drawn =
              part != nullptr ? std::move(*part)
                              : trace::device_excerpt(std::get<std::filesystem::path>(*picture),
                                                      job->preview_from);
          if (drawn) {
            job->preview = preview_of(std::move(*drawn), &job->progress);
          }
        } catch (const std::exception&) {
          // There is no preview; what is wrong is said when all has been read.
        }
      },
      [this, job] {
        const RunPointer made = std::exchange(job->preview, nullptr);
        if (job == job_ && made != nullptr && made->duration > 0) {
          emit preview(made);
        }
      });
}

void RunLoader::report() {
  if (job_ == nullptr) {
    return;
  }
  makePreview();
  const uint64_t total = job_->progress.total;
  const uint64_t read = std::min<uint64_t>(job_->progress.bytes, total);
  const bool reading = !job_->analyzing;
  const int percent = reading && total > 0 ? static_cast<int>(100 * read / total) : -1;
  // Emitted only on a change: listeners repaint on each signal.
  if (const std::pair now{reading, percent}; std::exchange(job_->reported, now) != now) {
    emit progress(
        percent,
        reading
            ? tr("Reading %1").arg(QString::fromStdString(job_->paths.front().filename().string()))
            : tr("Analyzing"));
  }
}

}  // namespace shardlens::gui
