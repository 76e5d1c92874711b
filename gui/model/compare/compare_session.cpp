#include "gui/model/compare/compare_session.h"

#include <exception>
#include <utility>

#include "core/base/error.h"
#include "profiler/analysis/recover/recorded_program.h"

namespace shardlens::gui {

CompareSession::CompareSession(QObject* parent) : QObject(parent) {
  connect(&loader_, &RunLoader::progress, this, &CompareSession::progress);
  connect(&loader_, &RunLoader::loaded, this, &CompareSession::compare);
  connect(&loader_, &RunLoader::failed, this, [this](const QString& message) {
    busy_ = false;
    emit failed(message);
  });
}

CompareSession::~CompareSession() {
  stop();
}

void CompareSession::stop() {
  ++session_;
  busy_ = false;
  comparison_.reset();
  if (progress_ != nullptr) {
    progress_->stop = true;
  }
}

void CompareSession::close() {
  stop();
  loader_.cancel();
  a_.reset();
  b_.reset();
  emit changed();
}

void CompareSession::start(const RunPointer& a,
                           const std::vector<std::filesystem::path>& b,
                           const std::vector<std::filesystem::path>& a_paths) {
  stop();
  a_ = a;
  b_.reset();
  try {
    further_a_ = a_paths.empty() ? Runs(1) : runs_of(a_paths);
    further_b_ = runs_of(b);
  } catch (const Error& error) {
    busy_ = true;
    const auto fail = [this, session = session_, message = QString::fromStdString(error.what())] {
      if (session == session_) {
        busy_ = false;
        emit failed(message);
      }
    };
    QMetaObject::invokeMethod(this, fail, Qt::QueuedConnection);  // as the loader's errors
    return;
  }
  const std::vector<std::filesystem::path> first = further_b_.front();
  further_a_.erase(further_a_.begin());
  further_b_.erase(further_b_.begin());
  busy_ = true;
  loader_.load(first);
}

void CompareSession::start(const RunPointer& a, const RunPointer& b) {
  stop();
  loader_.cancel();
  a_ = a;
  further_a_.clear();
  further_b_.clear();
  busy_ = true;
  compare(b);
}

void CompareSession::swap() {
  const RunPointer a = b_, b = a_;
  stop();
  a_ = a;
  std::swap(further_a_, further_b_);
  busy_ = true;
  compare(b);
}

void CompareSession::compare(const RunPointer& b) {
  emit progress(-1, tr("Comparing"));
  auto result = std::make_shared<Result>();
  progress_ = std::make_shared<trace::Progress>();
  const auto work = [result, progress = progress_, a = a_, b, further_a = further_a_,
                     further_b = further_b_] {
    check::SummaryOptions items;
    items.items = true;
    const auto summaries = [&](const RunPointer& first, const Runs& further) {
      std::vector<check::RunSummary> out{check::summarize(first->run, items)};
      trace::ReadOptions options;
      options.progress = progress.get();
      for (const std::vector<std::filesystem::path>& run : further) {
        out.push_back(check::summarize(analysis::open_run(run, options), items));
      }
      return out;
    };
    try {
      result->comparison = std::make_shared<const check::Comparison>(
          check::compare_runs(summaries(a, further_a), summaries(b, further_b)));
    } catch (const std::exception& error) {
      result->error = QString::fromStdString(error.what());
    }
  };
  background_.run(work, [this, result, b, session = session_] {
    if (session != session_) {
      return;
    }
    busy_ = false;
    if (result->comparison == nullptr) {
      emit failed(result->error);
      return;
    }
    b_ = b;
    comparison_ = result->comparison;
    emit changed();
  });
}

}  // namespace shardlens::gui
