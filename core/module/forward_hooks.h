#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/composable/registry.h"
#include "core/module/tensors_in.h"

namespace shardlens::module {

// Forward hooks of one module. Hooks run in order of registration, including post hooks. After an
// exception in the forward or in a hook, the remaining hooks are skipped, the failure hooks run,
// and the exception is rethrown.
//
// Threads     not thread-safe: registration and forward happen on the thread that trains.
class HookPoint : public composable::StateOwner {
 public:
  using PreForward = std::function<void(TensorRefs& inputs)>;
  using PostForward = std::function<void(TensorRefs& outputs)>;
  using ForwardFailed = std::function<void()>;  // must not throw

  // Removes its hook in remove() or when it is destroyed. May outlive the module.
  class Handle {
   public:
    Handle() = default;
    Handle(Handle&& other) noexcept = default;
    Handle& operator=(Handle&& other) noexcept {
      remove();
      alive_ = std::move(other.alive_);
      return *this;
    }
    ~Handle() { remove(); }
    void remove() {
      if (const auto alive = alive_.lock()) {
        *alive = false;
      }
      alive_.reset();
    }

   private:
    friend class HookPoint;
    explicit Handle(std::weak_ptr<bool> alive) : alive_(std::move(alive)) {}
    std::weak_ptr<bool> alive_;
  };

  [[nodiscard]] Handle register_pre_forward(PreForward hook) { return add(pre_, std::move(hook)); }
  [[nodiscard]] Handle register_post_forward(PostForward hook) {
    return add(post_, std::move(hook));
  }
  [[nodiscard]] Handle register_forward_failed(ForwardFailed hook) {
    return add(failed_, std::move(hook));
  }
  // Runs `body` as the module's forward. Pre-forward hooks get the tensors in `held`
  // (detail::HeldArguments), post-forward hooks those in the result and those that the forward has
  // put into its arguments.
  template <typename R, typename Held, typename Body>
  R run_with_hooks(Held& held, const Body& body) {
    static_assert(std::is_same_v<R, std::remove_cvref_t<R>> && kTensorsVisible<R>);
    TensorRefs refs;
    held.collect_inputs(refs);
    try {
      run(pre_, refs);
      R result = body();
      refs.clear();
      collect_tensors(refs, result);
      held.collect_outputs(refs);
      run(post_, refs);
      held.give_back();
      return result;
    } catch (...) {
      run(failed_);
      throw;
    }
  }
  // Keeps a hook until the module is destroyed.
  void keep(Handle handle) { kept_.push_back(std::move(handle)); }
  // Only checkpoint() (core/module/activation_checkpoint.h) calls this.
  void set_checkpoint(std::string fqn) { checkpoint_ = std::move(fqn); }

 protected:
  // The module's name in messages; nullopt: the forward is not checkpointed.
  [[nodiscard]] const std::optional<std::string>& checkpoint() const { return checkpoint_; }

 private:
  template <typename F>
  struct Entry {
    std::shared_ptr<bool> alive;
    F hook;
  };
  template <typename F>
  static Handle add(std::vector<Entry<F>>& hooks, F hook) {
    auto alive = std::make_shared<bool>(true);
    Handle handle{std::weak_ptr<bool>(alive)};
    hooks.push_back({std::move(alive), std::move(hook)});
    return handle;
  }
  template <typename F, typename... Refs>
  static void run(std::vector<Entry<F>>& hooks, Refs&... refs) {
    bool removed = false;
    for (size_t i = 0; i < hooks.size(); ++i) {  // by index: a hook may register another one
      if (*hooks[i].alive) {
        hooks[i].hook(refs...);
      } else {
        removed = true;
      }
    }
    if (removed) {
      std::erase_if(hooks, [](const Entry<F>& entry) { return !*entry.alive; });
    }
  }

  std::vector<Entry<PreForward>> pre_;
  std::vector<Entry<PostForward>> post_;
  std::vector<Entry<ForwardFailed>> failed_;
  std::vector<Handle> kept_;
  std::optional<std::string> checkpoint_;
};

}  // namespace shardlens::module
