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

#include "profiler/trace/spool/spool_format.h"

namespace shardlens::record {

// Records in batches, one for each thread that has added some, so that adding takes no lock.
//
// Order    the records of a thread stay in order; batches are taken one after the other.
// Threads  add() from any thread; take() from one at a time. What a thread added before take() is
//          called is taken.
class ThreadRecords {
 public:
  // `limit`: records of a thread that wait to be taken.
  explicit ThreadRecords(size_t limit);
  ThreadRecords(const ThreadRecords&) = delete;
  ThreadRecords& operator=(const ThreadRecords&) = delete;

  // False if the thread's batch is full: take() makes room.
  bool add(const trace::SpoolRecord& record) {
    Batch& batch = mine();
    const size_t written = batch.written.load(std::memory_order_relaxed);
    if (written - batch.taken.load(std::memory_order_acquire) >= limit_) {
      return false;
    }
    batch.records[written % kRecords] = record;
    batch.written.store(written + 1, std::memory_order_release);
    return true;
  }

  // Calls `keep` with the records of each thread, in one or two spans.
  template <typename Keep>
  void take(const Keep& keep) {
    const std::lock_guard lock(batches_mutex_);
    for (const std::unique_ptr<Batch>& batch : batches_) {
      const size_t end = batch->written.load(std::memory_order_acquire);
      size_t begin = batch->taken.load(std::memory_order_relaxed);
      while (begin < end) {
        const size_t first = begin % kRecords;
        const size_t count = std::min(end - begin, kRecords - first);
        keep(std::span<const trace::SpoolRecord>(batch->records).subspan(first, count));
        begin += count;
      }
      batch->taken.store(end, std::memory_order_release);
    }
  }

 private:
  static constexpr size_t kRecords = 512;  // 32 KiB, which stay in the core's cache

  struct Batch {
    std::thread::id thread;
    std::array<trace::SpoolRecord, kRecords> records;
    std::atomic<size_t> written{0}, taken{0};  // since the start
  };
  // The batch that the calling thread used last, and whose it is.
  struct Last {
    uint64_t owner = 0;
    Batch* batch = nullptr;
  };

  Batch& mine() {
    thread_local Last last;
    if (last.owner != id_) {
      last = {id_, &batch_of_thread()};
    }
    return *last.batch;
  }
  Batch& batch_of_thread();

  const uint64_t id_;  // unlike an address, it is not used again
  const size_t limit_;
  std::mutex batches_mutex_;
  std::vector<std::unique_ptr<Batch>> batches_;
};

}  // namespace shardlens::record
