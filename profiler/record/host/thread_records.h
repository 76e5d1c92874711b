#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "core/base/units.h"
#include "profiler/record/host/packed_operators.h"
#include "profiler/trace/spool/spool_format.h"

namespace shardlens::record {

// Records in batches, one for each thread that has added some, so that adding takes no lock.
//
// Order    of a thread, records stay in order, and so do operators; batches are taken one after the
//          other.
// Threads  add() from any thread; take() from one at a time. What a thread added before take() is
//          called is taken.
class ThreadRecords {
 public:
  // `limit`: records, and operators, of a thread that wait to be taken.
  explicit ThreadRecords(size_t limit);
  ThreadRecords(const ThreadRecords&) = delete;
  ThreadRecords& operator=(const ThreadRecords&) = delete;

  // False if the thread's batch is full: take() makes room.
  bool add(const trace::SpoolRecord& record) { return mine().batch->records.add(record, limit_); }
  bool add_operator(uint32_t name, Nanoseconds start, Nanoseconds end) {
    const Last& last = mine();
    return last.batch->operators.add({name, last.thread, start, end}, limit_);
  }
  // The calling thread's id in records.
  [[nodiscard]] uint32_t thread() { return mine().thread; }

  // Calls `keep` with the records of each thread, and then with its operators, in one or two spans
  // each.
  template <typename Keep>
  void take(const Keep& keep) {
    const std::lock_guard lock(batches_mutex_);
    for (const std::unique_ptr<Batch>& batch : batches_) {
      batch->records.take(keep);
      batch->operators.take(keep);
    }
  }

 private:
  // What one thread adds and another takes.
  template <typename T, size_t kSize>
  class Ring {
   public:
    bool add(const T& entry, size_t limit) {
      const size_t written = written_.load(std::memory_order_relaxed);
      if (written - taken_.load(std::memory_order_acquire) >= std::min(limit, kSize)) {
        return false;
      }
      entries_[written % kSize] = entry;
      written_.store(written + 1, std::memory_order_release);
      return true;
    }
    template <typename Keep>
    void take(const Keep& keep) {
      const size_t end = written_.load(std::memory_order_acquire);
      size_t begin = taken_.load(std::memory_order_relaxed);
      while (begin < end) {
        const size_t first = begin % kSize;
        const size_t count = std::min(end - begin, kSize - first);
        keep(std::span<const T>(entries_).subspan(first, count));
        begin += count;
      }
      taken_.store(end, std::memory_order_release);
    }

   private:
    std::array<T, kSize> entries_{};
    std::atomic<size_t> written_{0}, taken_{0};  // since the start
  };

  struct Batch {
    std::thread::id thread;
    Ring<trace::SpoolRecord, 256> records;  // 16 KiB and
    Ring<RanOperator, 512> operators;       // 12 KiB, which stay in the core's cache
  };
  // The batch that the calling thread used last, and whose it is.
  struct Last {
    uint64_t owner = 0;
    Batch* batch = nullptr;
    uint32_t thread = 0;
  };

  const Last& mine() {
    thread_local Last last;
    if (last.owner != id_) {
      last = {id_, &batch_of_thread(), system_thread_id()};
    }
    return last;
  }
  Batch& batch_of_thread();
  static uint32_t system_thread_id();

  const uint64_t id_;  // unlike an address, it is not used again
  const size_t limit_;
  std::mutex batches_mutex_;
  std::vector<std::unique_ptr<Batch>> batches_;
};

}  // namespace shardlens::record
