#pragma once

#include <functional>
#include <vector>

#include <QFuture>
#include <QObject>

namespace shardlens::gui {

// Runs work on other threads on behalf of an object.
//
// Ownership  a member of `owner`. The destructor waits for all work; its `done` is then not called.
// Threads    run() and the destructor: the owner's thread.
class Background {
 public:
  explicit Background(QObject* owner) : owner_(owner) {}
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Calls `work` on another thread (it must not throw), then `done` on the owner's thread, from its
  // event loop. `done` is never called before run() has returned, so that the caller can still
  // connect to the signals that it emits.
  void run(std::function<void()> work, std::function<void()> done);

 private:
  QObject* owner_;
  std::vector<QFuture<void>> running_;
};

}  // namespace shardlens::gui
