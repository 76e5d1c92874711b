// Counts the bytes that the engine allocates.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/core/CPUAllocator.h>

#include "core/dist/world.h"
#include "core/fsdp/run/executor.h"
#include "core/fsdp/unit/flat_param_handle.h"
#include "core/fsdp/unit/unsharded_gradients.h"
#include "core/schedule/reads_gradient.h"

namespace shardlens::test {

// What a block of memory is for.
enum class Role : uint8_t { kOther, kUnsharded, kCommunication, kGradient };
inline constexpr size_t kRoleCount = 4;

// Counts the allocations of LibTorch's CPU allocator once it is installed.
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
    live_of_[data] = blocks_.size();
    blocks_.push_back({size, ++now_, kAlive, {{now_, role_}}});
    live_ += size;
    if (live_ > peak_) {
      peak_ = live_;
      peak_at_ = now_;
    }
    return {data, data, &release, c10::kCPU};
  }
  // LibTorch also allocates without a DataPtr, and then frees memory by its address only.
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    inner_->copy_data(target, source, bytes);
  }
  // The role of all memory that this thread allocates from now on.
  static void set_role(Role role) { role_ = role; }
  // The role of a tensor's block from now on.
  void set_role(const at::Tensor& tensor, Role role) {
    if (!tensor.defined()) {
      return;
    }
    const std::lock_guard lock(mutex_);
    const auto found = live_of_.find(tensor.storage().mutable_data());
    if (found != live_of_.end()) {
      blocks_[found->second].roles.emplace_back(++now_, role);
    }
  }
  [[nodiscard]] int64_t live() const {
    const std::lock_guard lock(mutex_);
    return live_;
  }
  struct Peak {
    int64_t bytes = 0;
    std::array<int64_t, kRoleCount> by_role{};
  };
  // The largest number of bytes since the last call, and their roles. A block that becomes a
  // gradient later counts as one from the beginning: autograd allocates it before the engine gets
  // it.
  Peak take_peak() {
    const std::lock_guard lock(mutex_);
    Peak out{peak_, {}};
    for (const Block& block : blocks_) {
      if (block.born <= peak_at_ && peak_at_ < block.died) {
        out.by_role[static_cast<size_t>(block.role_at(peak_at_))] += block.bytes;
      }
    }
    std::vector<Block> alive;
    for (auto& [data, index] : live_of_) {
      alive.push_back(std::move(blocks_[index]));
      index = alive.size() - 1;
    }
    blocks_ = std::move(alive);
    peak_ = live_;
    peak_at_ = now_;
    return out;
  }

 private:
  static constexpr int64_t kAlive = std::numeric_limits<int64_t>::max();
  struct Block {
    int64_t bytes = 0, born = 0, died = kAlive;
    std::vector<std::pair<int64_t, Role>> roles;  // since when
    [[nodiscard]] Role role_at(int64_t time) const {
      Role role = Role::kOther;
      for (const auto& [since, each] : roles) {
        if (since <= time || (role == Role::kOther && each == Role::kGradient)) {
          role = each;
        }
      }
      return role;
    }
  };

  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {
    c10::SetCPUAllocator(this, /*priority=*/1);  // never removed: its blocks may outlive a test
  }
  static void release(void* data) {
    CountingAllocator& self = instance();
    {
      const std::lock_guard lock(self.mutex_);
      const auto found = self.live_of_.find(data);
      if (found != self.live_of_.end()) {
        Block& block = self.blocks_[found->second];
        block.died = ++self.now_;
        self.live_ -= block.bytes;
        self.live_of_.erase(found);
      }
    }
    self.inner_->raw_deallocate(data);
  }

  c10::Allocator* inner_;
  mutable std::mutex mutex_;
  static inline thread_local Role role_ = Role::kOther;
  std::vector<Block> blocks_;                  // since the last peak was taken
  std::unordered_map<void*, size_t> live_of_;  // index into blocks_
  int64_t now_ = 0, live_ = 0, peak_ = 0, peak_at_ = 0;
};

// Waits for each collective before the next action: FSDP1 frees a reduction's input while it is
// still read, so the lifetime of its bytes would depend on timing. Also measures unsharded
// parameters and sets the role of memory.
class PromptExecutor final : public fsdp::Executor {
 public:
  PromptExecutor(std::vector<fsdp::FlatParamHandle*> handles, dist::World& world, int64_t& most)
      : Executor(handles, world, nullptr),
        handles_(std::move(handles)),
        world_(world),
        most_(most) {}
  void execute(const schedule::Action& action, bool edges) override {
    CountingAllocator& memory = CountingAllocator::instance();
    const bool reads = schedule::reads_gradient(action);
    if (reads || action.op == schedule::Op::kReduceCopyIn) {
      for (const at::Tensor& each : handles_[action.unit]->unsharded_gradients().waiting()) {
        memory.set_role(each, Role::kGradient);
      }
    }
    CountingAllocator::set_role(reads ? Role::kGradient : role_of(action));
    Executor::execute(action, edges);
    CountingAllocator::set_role(Role::kOther);
    int64_t unsharded = 0;
    for (const fsdp::FlatParamHandle* handle : handles_) {
      unsharded += handle == nullptr ? 0 : handle->storage().bytes();
    }
    most_ = std::max(most_, unsharded);
    if (action.op == schedule::Op::kReduceScatter || action.op == schedule::Op::kStoreGrad ||
        action.op == schedule::Op::kStep) {
      world_.world().wait(world_.world().run([] {}, {kNoUnit, "the test"}));
    }
    if (action.op == schedule::Op::kStoreGrad) {
      memory.set_role(handles_[action.unit]->shard().values().grad(), Role::kGradient);
    }
  }

 private:
  static Role role_of(const schedule::Action& action) {
    if (action.op != schedule::Op::kAlloc) {
      return Role::kOther;
    }
    return action.buffer.kind == schedule::BufferKind::kUnsharded ? Role::kUnsharded
                                                                  : Role::kCommunication;
  }

  std::vector<fsdp::FlatParamHandle*> handles_;
  dist::World& world_;
  int64_t& most_;
};

}  // namespace shardlens::test
