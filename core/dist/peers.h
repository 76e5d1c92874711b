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

// Shares what each rank of a world is doing through the rendezvous store, so that a rank whose wait
// timed out can report what the others were doing. A rank publishes its state only after the state
// has not changed for a quarter of the timeout (at most two seconds): a healthy run writes nothing.
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
