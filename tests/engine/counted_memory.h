// What the engine allocates, byte by byte.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/core/CPUAllocator.h>

#include "core/dist/world.h"
#include "core/fsdp/executor.h"
#include "core/fsdp/flat_param_handle.h"

namespace shardlens::test {

// Counts what passes through LibTorch's CPU allocator while it is in place.
class CountingAllocator final : public c10::Allocator {
 public:
  static CountingAllocator& instance() {
    static CountingAllocator allocator(c10::GetCPUAllocator());
    return allocator;
  }
  c10::DataPtr allocate(size_t bytes) override {
    void* data = inner_->raw_allocate(bytes);
    if (data == nullptr) {
      return {nullptr, c10::kCPU};
    }
    const auto size = static_cast<int64_t>(bytes);
    const std::lock_guard lock(mutex_);
    sizes_[data] = {size, unsharded_};
    live_ += size;
    live_unsharded_ += unsharded_ ? size : 0;
    if (live_ > peak_) {
      peak_ = live_;
      unsharded_at_peak_ = live_unsharded_;
    }
    return {data, data, &release, c10::kCPU};
  }
  // LibTorch also allocates without a DataPtr, and gives such memory back by its address alone.
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    inner_->copy_data(target, source, bytes);
  }
  // What this thread allocates from now on are unsharded parameters, or not.
  static void set_unsharded(bool is) { unsharded_ = is; }
  [[nodiscard]] int64_t live() const {
    const std::lock_guard lock(mutex_);
    return live_;
  }
  // The most since the last call.
  int64_t take_peak() {
    const std::lock_guard lock(mutex_);
    unsharded_at_last_peak_ = std::exchange(unsharded_at_peak_, live_unsharded_);
    return std::exchange(peak_, live_);
  }
  // Of the peak that was taken last.
  [[nodiscard]] int64_t unsharded_at_peak() const { return unsharded_at_last_peak_; }

 private:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {
    c10::SetCPUAllocator(this, /*priority=*/1);  // for good: its blocks may outlive a test
  }
  static void release(void* data) {
    CountingAllocator& self = instance();
    {
      const std::lock_guard lock(self.mutex_);
      const auto found = self.sizes_.find(data);
      if (found != self.sizes_.end()) {
        self.live_ -= found->second.bytes;
        self.live_unsharded_ -= found->second.unsharded ? found->second.bytes : 0;
        self.sizes_.erase(found);
      }
    }
    self.inner_->raw_deallocate(data);
  }

  c10::Allocator* inner_;
  mutable std::mutex mutex_;
  struct Block {
    int64_t bytes = 0;
    bool unsharded = false;
  };
  static inline thread_local bool unsharded_ = false;
  std::unordered_map<void*, Block> sizes_;
  int64_t live_ = 0, peak_ = 0;
  int64_t live_unsharded_ = 0, unsharded_at_peak_ = 0, unsharded_at_last_peak_ = 0;
};

// Each collective ends before the next action: FSDP1 gives a reduction's input back while it is
// still read, so how long its bytes live would be a question of time. Watches unsharded parameters.
class PromptExecutor final : public fsdp::Executor {
 public:
  PromptExecutor(std::vector<fsdp::FlatParamHandle*> handles, dist::World& world, int64_t& most)
      : Executor(handles, world, nullptr),
        handles_(std::move(handles)),
        world_(world),
        most_(most) {}
  void execute(const schedule::Action& action, bool edges) override {
    CountingAllocator::set_unsharded(action.op == schedule::Op::kAlloc &&
                                     action.buffer.kind == schedule::BufferKind::kUnsharded);
    Executor::execute(action, edges);
    CountingAllocator::set_unsharded(false);
    int64_t unsharded = 0;
    for (const fsdp::FlatParamHandle* handle : handles_) {
      unsharded += handle == nullptr ? 0 : handle->unsharded_bytes();
    }
    most_ = std::max(most_, unsharded);
    if (action.op == schedule::Op::kReduceScatter || action.op == schedule::Op::kStoreGrad) {
      world_.shard().wait(world_.shard().run([] {}, {kNoUnit, "the test"}));
    }
  }

 private:
  std::vector<fsdp::FlatParamHandle*> handles_;
  dist::World& world_;
  int64_t& most_;
};

}  // namespace shardlens::test
