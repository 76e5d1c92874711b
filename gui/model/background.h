#pragma once

#include <functional>
#include <vector>

#include <QFuture>
#include <QObject>

namespace shardlens::gui {

// Work on other threads for an object that lives on one.
//
// Ownership  a member of `owner`; its destructor waits for all work, whose end is then not heard.
// Threads    run() and the destructor: the owner's.
class Background {
 public:
  explicit Background(QObject* owner) : owner_(owner) {}
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // `work` on another thread (it must not throw), then `done` on the owner's, from its event loop:
  // never before run() has returned, so that whoever started it can still connect to what it emits.
  void run(std::function<void()> work, std::function<void()> done);

 private:
  QObject* owner_;
  std::vector<QFuture<void>> running_;
};

}  // namespace shardlens::gui
