#pragma once

#include <atomic>
#include <cstdint>

namespace shardlens {

// Counts the live objects of a class that derives from it, so that a test can detect leaks:
// struct Request : LiveCount<Request> …; LiveCount<Request>::live().
//
// Threads     any.
template <typename T>
class LiveCount {
 public:
  [[nodiscard]] static int64_t live() { return count_.load(std::memory_order_relaxed); }

 protected:
  LiveCount() { count_.fetch_add(1, std::memory_order_relaxed); }
  LiveCount(const LiveCount& /*other*/) : LiveCount() {}
  LiveCount& operator=(const LiveCount&) = default;
  ~LiveCount() { count_.fetch_sub(1, std::memory_order_relaxed); }

 private:
  static inline std::atomic<int64_t> count_{0};
};

}  // namespace shardlens
