#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace shardlens::record {

// Buffers that CUPTI fills and a reader thread empties. All are allocated at the start; no more are
// added.
//
// Threads     any; only next() blocks.
class ActivityBuffers {
 public:
  struct Filled {
    uint8_t* data = nullptr;
    size_t size = 0;
    void* context = nullptr;
    uint32_t stream = 0;
  };

  ActivityBuffers(size_t bytes, size_t count) : bytes_(bytes) {
    for (size_t i = 0; i < count; ++i) {
      // Aligned as CUPTI requires, and written once, so that CUPTI's callback does not wait for
      // page faults.
      owned_.emplace_back(static_cast<uint8_t*>(std::aligned_alloc(kAlignment, bytes)), std::free);
      std::memset(owned_.back().get(), 0, bytes);
      free_.push_back(owned_.back().get());
    }
  }

  [[nodiscard]] size_t bytes() const { return bytes_; }

  // nullptr if none is free: CUPTI then loses records and counts them.
  [[nodiscard]] uint8_t* take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      ++refused_;
      return nullptr;
    }
    uint8_t* buffer = free_.back();
    free_.pop_back();
    return buffer;
  }
  void give_back(uint8_t* buffer) {
    const std::lock_guard lock(mutex_);
    free_.push_back(buffer);
  }
  void filled(const Filled& buffer) {
    const std::lock_guard lock(mutex_);
    filled_.push_back(buffer);
    changed_.notify_all();
  }

  // Waits for the next filled buffer. nullopt once close() was called and none is left.
  [[nodiscard]] std::optional<Filled> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || !filled_.empty(); });
    if (filled_.empty()) {
      return std::nullopt;
    }
    const Filled buffer = filled_.front();
    filled_.pop_front();
    return buffer;
  }
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  // How often no buffer was free.
  [[nodiscard]] int64_t refused() const {
    const std::lock_guard lock(mutex_);
    return refused_;
  }

 private:
  static constexpr size_t kAlignment = 4096;

  const size_t bytes_;
  std::vector<std::unique_ptr<uint8_t, void (*)(void*)>> owned_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<uint8_t*> free_;
  std::deque<Filled> filled_;
  int64_t refused_ = 0;
  bool closed_ = false;
};

}  // namespace shardlens::record
