#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <c10/util/SmallVector.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "core/composable/registry.h"
#include "core/module/activation_checkpoint.h"

namespace shardlens::module {

// The tensors in a forward's arguments or result, in order. A hook may assign through the pointers.
using TensorRefs = c10::SmallVector<at::Tensor*, 4>;

inline void collect_tensors(TensorRefs& refs, at::Tensor& tensor) {
  refs.push_back(&tensor);
}
inline void collect_tensors(TensorRefs& refs, std::optional<at::Tensor>& tensor) {
  if (tensor.has_value()) {
    refs.push_back(&*tensor);
  }
}
template <typename T>
void collect_tensors(TensorRefs& refs, std::vector<T>& values) {
  for (T& value : values) {
    collect_tensors(refs, value);
  }
}
template <typename... Ts>
void collect_tensors(TensorRefs& refs, std::tuple<Ts...>& values) {
  std::apply([&](auto&... each) { (collect_tensors(refs, each), ...); }, values);
}
template <typename T>
void collect_tensors(TensorRefs& /*refs*/, T& /*other*/) {}  // arguments without tensors

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
  // Runs `body` as the module's forward. Pre-forward hooks get the tensors in `held`, post-forward
  // hooks those in the result.
  template <typename R, typename Held, typename Body>
  R run_with_hooks(Held& held, const Body& body) {
    TensorRefs refs;
    collect_tensors(refs, held);
    try {
      run(pre_, refs);
      R result = body();
      refs.clear();
      collect_tensors(refs, result);
      run(post_, refs);
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

namespace detail {

template <typename Impl, typename Forward>
class WithHooks;

template <typename Impl, typename Class, typename R, typename... Args>
class WithHooks<Impl, R (Class::*)(Args...)> : public Impl, public HookPoint {
 public:
  using Impl::Impl;

  // Errors: UsageError while an API such as fully_shard manages the module.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<c10::Device>& device = std::nullopt) const override {
    composable::refuse_copy(*this);
    return Impl::clone(device);
  }

  // Has the signature of Impl::forward, so that Sequential, AnyModule and ModuleHolder accept it.
  R forward(Args... args) {
    Held held(std::forward<Args>(args)...);
    return this->template run_with_hooks<R>(held, [&]() -> R {
      return checkpoint() && at::GradMode::is_enabled() ? run_checkpointed(held)
                                                        : run_forward(held);
    });
  }

 private:
  using Held = std::tuple<std::decay_t<Args>...>;

  R run_forward(Held& held) {
    return std::apply(
        [this](auto&... each) -> R {
          return Impl::forward(std::forward<Args>(static_cast<std::decay_t<Args>&>(each))...);
        },
        held);
  }

  R run_checkpointed(Held& held) {
    if constexpr (std::is_copy_constructible_v<Held>) {
      const CheckpointScope scope(*checkpoint(), [module = this->shared_from_this(), this, held] {
        Held again = held;
        static_cast<void>(run_forward(again));
      });
      return run_forward(held);
    } else {
      refuse_checkpoint(*checkpoint());
    }
  }
};

}  // namespace detail

// `Impl` with forward hooks: derives from Impl and shadows `forward`. FQNs, parameters and type
// checks do not change. Source: tested inside torch::nn::Sequential with LibTorch 2.11.
template <typename Impl>
class Hookable : public detail::WithHooks<Impl, decltype(&Impl::forward)> {
 public:
  using detail::WithHooks<Impl, decltype(&Impl::forward)>::WithHooks;
};

}  // namespace shardlens::module

// Use instead of TORCH_MODULE(Name): the holder creates a Hookable<NameImpl>, so that the module
// can be a unit.
#define SHARDLENS_MODULE(Name)                                                              \
  class Name : public torch::nn::ModuleHolder<::shardlens::module::Hookable<Name##Impl>> {  \
   public:                                                                                  \
    using torch::nn::ModuleHolder<::shardlens::module::Hookable<Name##Impl>>::ModuleHolder; \
    using Impl [[maybe_unused]] = Name##Impl;                                               \
  }
