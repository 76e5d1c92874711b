#include "gui/model/base/background.h"

#include <utility>

#include <QtConcurrent>

namespace shardlens::gui {

Background::~Background() {
  for (QFuture<void>& future : running_) {
    future.waitForFinished();
  }
}

void Background::run(std::function<void()> work, std::function<void()> done) {
  std::erase_if(running_, [](const QFuture<void>& future) { return future.isFinished(); });
  running_.push_back(
      QtConcurrent::run([owner = owner_, work = std::move(work), done = std::move(done)] {
        work();
        QMetaObject::invokeMethod(owner, done, Qt::QueuedConnection);
      }));
}

}  // namespace shardlens::gui
