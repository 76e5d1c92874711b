#include "gui/model/base/background.h"

#include <algorithm>
#include <utility>

#include <QCoreApplication>
#include <QEvent>

namespace shardlens::gui {
namespace {

QEvent::Type finished_event() {
  static const int type = QEvent::registerEventType();
  return static_cast<QEvent::Type>(type);
}

}  // namespace

Background::~Background() {
  for (Job& job : running_) {
    job.thread.join();
  }
}

void Background::run(std::function<void()> work, std::function<void()> done) {
  Job& job = waiting_.emplace_back();
  job.work = std::move(work);
  job.done = std::move(done);
  startWaiting();
}

void Background::startWaiting() {
  const size_t most = std::max(2U, std::thread::hardware_concurrency());
  while (!waiting_.empty() && running_.size() < most) {
    running_.splice(running_.end(), waiting_, waiting_.begin());
    Job& job = running_.back();
    job.thread = std::thread([this, &job, type = finished_event()] {
      job.work();
      job.finished = true;
      QCoreApplication::postEvent(this, new QEvent(type));  // NOLINT: the event loop deletes it
    });
  }
}

bool Background::event(QEvent* event) {
  if (event->type() != finished_event()) {
    return QObject::event(event);
  }
  // Each job posts one event, so the events and the finished jobs are as many.
  const auto job =
      std::ranges::find_if(running_, [](const Job& each) { return each.finished.load(); });
  if (job == running_.end()) {
    return true;
  }
  job->thread.join();
  const std::function<void()> done = std::move(job->done);
  running_.erase(job);
  startWaiting();
  done();
  return true;
}

}  // namespace shardlens::gui
