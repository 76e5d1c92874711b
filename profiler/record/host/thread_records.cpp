#include "profiler/record/host/thread_records.h"

#include <algorithm>

#include <sys/syscall.h>
#include <unistd.h>

namespace shardlens::record {
namespace {

uint64_t next_owner() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

ThreadRecords::ThreadRecords(size_t limit)
    : id_(next_owner()), limit_(std::max<size_t>(limit, 1)) {}

uint32_t ThreadRecords::system_thread_id() {
  return static_cast<uint32_t>(::syscall(SYS_gettid));
}

ThreadRecords::Batch& ThreadRecords::batch_of_thread() {
  const std::lock_guard lock(batches_mutex_);
  const auto thread = std::this_thread::get_id();
  // Also that of a thread that has ended and had the same id.
  const auto found = std::ranges::find_if(
      batches_, [thread](const auto& batch) { return batch->thread == thread; });
  if (found != batches_.end()) {
    return **found;
  }
  Batch& batch = *batches_.emplace_back(std::make_unique<Batch>());
  batch.thread = thread;
  return batch;
}

}  // namespace shardlens::record
