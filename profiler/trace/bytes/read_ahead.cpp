#include "profiler/trace/bytes/read_ahead.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace shardlens::trace {
namespace {

class ReadAhead final : public ByteSource {
 public:
  ReadAhead(std::unique_ptr<ByteSource> source, size_t from)
      : source_(std::move(source)), from_(from) {}
  ~ReadAhead() override {
    if (!thread_.joinable()) {
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  size_t read(char* out, size_t size) override {
    if (!thread_.joinable()) {
      if (given_ < from_) {
        const size_t got = source_->read(out, size);
        given_ += got;
        return got;
      }
      thread_ = std::thread([this] { fill(); });
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return filled_ != 0 || ended_; });
    if (filled_ == 0) {
      if (error_) {
        std::rethrow_exception(error_);
      }
      return 0;
    }
    Block& block = blocks_[first_];
    lock.unlock();  // only the reader uses the block until it is returned
    const size_t taken = std::min(size, block.size - taken_);
    std::copy_n(block.bytes.data() + taken_, taken, out);
    taken_ += taken;
    if (taken_ == block.size) {
      lock.lock();
      taken_ = 0;
      first_ = (first_ + 1) % kAheadBlocks;
      --filled_;
      lock.unlock();
      changed_.notify_all();
    }
    return taken;
  }

 private:
  struct Block {
    std::vector<char> bytes;
    size_t size = 0;
  };

  void fill() {
    std::exception_ptr error;
    try {
      while (Block* block = free_block()) {
        block->bytes.resize(kAheadBlockBytes);
        block->size = source_->read(block->bytes.data(), block->bytes.size());
        if (block->size == 0) {
          break;
        }
        const std::lock_guard lock(mutex_);
        ++filled_;
        changed_.notify_all();
      }
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    error_ = error;
    ended_ = true;
    changed_.notify_all();
  }

  // nullptr: the reader has been destroyed.
  Block* free_block() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return filled_ < kAheadBlocks || stop_; });
    return stop_ ? nullptr : &blocks_[(first_ + filled_) % kAheadBlocks];
  }

  std::unique_ptr<ByteSource> source_;  // used only by the thread, once it runs
  size_t from_, given_ = 0;             // used before the thread runs
  std::array<Block, kAheadBlocks> blocks_;
  size_t taken_ = 0;  // bytes used of the first block; only the reader uses it
  std::mutex mutex_;  // guards the fields below
  std::condition_variable changed_;
  size_t first_ = 0, filled_ = 0;
  bool stop_ = false, ended_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<ByteSource> read_ahead(std::unique_ptr<ByteSource> source, size_t from) {
  return std::make_unique<ReadAhead>(std::move(source), from);
}

}  // namespace shardlens::trace
