#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}

namespace shardlens::dist {

// What each rank of a world is at, told through the store where they met, so that one whose wait
// timed out can say what the others were doing. A rank tells only once it has been at the same
// thing for a quarter of the timeout, two seconds at most: a healthy run writes nothing.
//
// Threads  `doing` is called on a thread of this object, report() on any.
class Peers {
 public:
  Peers(c10::intrusive_ptr<c10d::Store> store,
        int rank,
        int size,
        std::chrono::milliseconds timeout,
        std::function<std::string()> doing);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // "rank 0 waits for …; rank 2 …", without this rank. Never throws.
  [[nodiscard]] std::string report() const;

 private:
  void watch(std::chrono::milliseconds stall);
  void tell(const std::string& text) const;

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_, size_;
  std::function<std::string()> doing_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace shardlens::dist
