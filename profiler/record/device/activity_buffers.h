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
#include <unordered_map>

namespace shardlens::record {

// Buffers of one size that CUPTI fills and a reader thread empties. A buffer that is lent is zero,
// so that CUPTI does not have to clear it in the thread that launches. CUPTI may hand over a buffer
// late, even after the reader has closed, and an error in it may hand over one twice; so each
// buffer's state is known, and one that was not lent is not taken.
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

  ActivityBuffers(size_t bytes, size_t count) : bytes_(bytes) { grow(count); }

  // Allocates until there are `count` buffers.
  void grow(size_t count) {
    const std::lock_guard lock(mutex_);
    while (states_.size() < count) {
      // Aligned as CUPTI requires. Clearing it also avoids page faults in CUPTI's callback.
      Owned buffer(static_cast<uint8_t*>(std::aligned_alloc(kAlignment, bytes_)), std::free);
      clear(buffer.get());
      free_.push_back(buffer.get());
      states_.emplace(buffer.get(), State::kFree);
      owned_.push_back(std::move(buffer));
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
    states_[buffer] = State::kLent;
    return buffer;
  }
  void give_back(uint8_t* buffer) {
    clear(buffer);
    const std::lock_guard lock(mutex_);
    release(buffer);
  }
  // A buffer from CUPTI, with `size` bytes of records.
  void filled(const Filled& buffer) {
    const std::lock_guard lock(mutex_);
    const auto found = states_.find(buffer.data);
    if (found == states_.end() || found->second != State::kLent || buffer.size > bytes_) {
      ++unexpected_;
    } else if (closed_) {
      clear(buffer.data);
      release(buffer.data);
    } else {
      found->second = State::kFilled;
      filled_.push_back(buffer);
      changed_.notify_all();
    }
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
  // For the next reader; counts from zero again.
  void open() {
    const std::lock_guard lock(mutex_);
    closed_ = false;
    refused_ = unexpected_ = 0;
  }
  // How often no buffer was free.
  [[nodiscard]] int64_t refused() const {
    const std::lock_guard lock(mutex_);
    return refused_;
  }
  // How many buffers came that were not lent, and were ignored.
  [[nodiscard]] int64_t unexpected() const {
    const std::lock_guard lock(mutex_);
    return unexpected_;
  }

 private:
  static constexpr size_t kAlignment = 4096;
  enum class State : uint8_t { kFree, kLent, kFilled };
  using Owned = std::unique_ptr<uint8_t, void (*)(void*)>;

  void clear(uint8_t* buffer) const { std::memset(buffer, 0, bytes_); }
  // The caller holds mutex_.
  void release(uint8_t* buffer) {
    states_[buffer] = State::kFree;
    free_.push_back(buffer);
  }

  const size_t bytes_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<Owned> owned_;
  std::unordered_map<uint8_t*, State> states_;
  std::deque<uint8_t*> free_;
  std::deque<Filled> filled_;
  int64_t refused_ = 0, unexpected_ = 0;
  bool closed_ = false;
};

}  // namespace shardlens::record
