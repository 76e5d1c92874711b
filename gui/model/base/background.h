#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <thread>

#include <QObject>

namespace shardlens::gui {

// Runs work on other threads on behalf of an object: as many jobs at once as the machine has cores,
// in the order of the calls. Threads are those of the standard library, so that ThreadSanitizer,
// which does not see inside Qt, knows what they order.
//
// Ownership  a member of its owner. The destructor waits for the jobs that run, and drops those
//            that have not begun; their `done` is then not called.
// Threads    run() and the destructor: the owner's thread.
class Background : public QObject {
 public:
  Background() = default;
  ~Background() override;
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Calls `work` on another thread (it must not throw), then `done` on the owner's thread, from its
  // event loop. `done` is never called before run() has returned, so that the caller can still
  // connect to the signals that it emits.
  void run(std::function<void()> work, std::function<void()> done);

 protected:
  bool event(QEvent* event) override;

 private:
  struct Job {
    std::function<void()> work, done;
    std::atomic<bool> finished = false;
    std::thread thread = {};
  };

  void startWaiting();

  std::list<Job> waiting_, running_;
};

}  // namespace shardlens::gui
