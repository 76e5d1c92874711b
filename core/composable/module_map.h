#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include <torch/nn/module.h>

namespace shardlens::composable {

// Data about modules, stored outside them: a map by identity that keeps no module alive. The entry
// of a destroyed module is invisible at once, even if a new module has the same address. Such
// entries are erased when the map has doubled since they were last erased.
//
// Threads     any; one lock.
// Complexity  find O(1); insertions O(1) amortised.
// Source      Python's WeakKeyDictionary, which PyTorch uses for the same purpose.
template <typename T>
class ModuleMap {
 public:
  [[nodiscard]] std::optional<T> find(const torch::nn::Module& module) const {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(&module);
    return found == entries_.end() || found->second.module.expired()
               ? std::nullopt
               : std::optional<T>(found->second.value);
  }

  // Returns false and changes nothing if the module has an entry.
  [[nodiscard]] bool insert(const std::shared_ptr<torch::nn::Module>& module, T value) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(module.get());
    if (found != entries_.end() && !found->second.module.expired()) {
      return false;
    }
    set_locked(module, std::move(value));
    return true;
  }

  void set(const std::shared_ptr<torch::nn::Module>& module, T value) {
    const std::lock_guard lock(mutex_);
    set_locked(module, std::move(value));
  }

  // Removes every entry for which `drop(value)`.
  template <typename Predicate>
  void erase_if(const Predicate& drop) {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [&](const auto& item) {
      return item.second.module.expired() || drop(item.second.value);
    });
  }

  void erase(const torch::nn::Module& module) {
    const std::lock_guard lock(mutex_);
    entries_.erase(&module);
  }

  // Entries of live modules.
  [[nodiscard]] size_t size() const {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(
        std::count_if(entries_.begin(), entries_.end(),
                      [](const auto& item) { return !item.second.module.expired(); }));
  }

 private:
  struct Entry {
    std::weak_ptr<torch::nn::Module>
        module;  // distinguishes the module from a new one at the same address
    T value;
  };
  static constexpr size_t kFirstSweep = 64;

  void set_locked(const std::shared_ptr<torch::nn::Module>& module, T value) {
    if (entries_.size() >= sweep_at_) {
      std::erase_if(entries_, [](const auto& item) { return item.second.module.expired(); });
      sweep_at_ = std::max(kFirstSweep, 2 * entries_.size());
    }
    entries_.insert_or_assign(module.get(), Entry{module, std::move(value)});
  }

  mutable std::mutex mutex_;
  std::unordered_map<const torch::nn::Module*, Entry> entries_;  // guarded by mutex_
  size_t sweep_at_ = kFirstSweep;                                // guarded by mutex_
};

}  // namespace shardlens::composable
