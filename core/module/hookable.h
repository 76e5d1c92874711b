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

// Tensors found in a forward's arguments or result, in order; a hook may assign through the
// pointers.
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
void collect_tensors(TensorRefs& /*refs*/, T& /*other*/) {}  // arguments that hold no tensor

// Forward hooks of one module. Hooks run in order of registration, post hooks too; an exception in
// the forward or in a hook skips what is left, runs the failure hooks and is passed on.
//
// Threads     not thread-safe: registration and forward happen on the thread that trains.
class HookPoint : public composable::StateOwner {
 public:
  using PreForward = std::function<void(TensorRefs& inputs)>;
  using PostForward = std::function<void(TensorRefs& outputs)>;
  using ForwardFailed = std::function<void()>;  // must not throw

  // Removes its hook when asked or destroyed. Outliving the module is harmless.
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
  // Runs `body` as the module's forward. Hooks see the tensors of `held` before and of its result
  // after.
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
  // Keeps a hook for the life of the module.
  void keep(Handle handle) { kept_.push_back(std::move(handle)); }
  // By checkpoint() alone (core/module/activation_checkpoint.h).
  void set_checkpoint(std::string fqn) { checkpoint_ = std::move(fqn); }

 protected:
  // Named as in messages; none: forward keeps what it wants.
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
    for (size_t i = 0; i < hooks.size(); ++i) {  // by index: a hook may register another
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

  // Same signature as Impl::forward, so Sequential, AnyModule and ModuleHolder take it like the
  // original.
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

// `Impl` with forward hooks: derives from it and shadows `forward`. FQNs, parameters and type
// checks stay. Source: tried inside torch::nn::Sequential on LibTorch 2.11.
template <typename Impl>
class Hookable : public detail::WithHooks<Impl, decltype(&Impl::forward)> {
 public:
  using detail::WithHooks<Impl, decltype(&Impl::forward)>::WithHooks;
};

}  // namespace shardlens::module

// Drop-in for TORCH_MODULE(Name): the holder keeps a Hookable<NameImpl>, so the module can be a
// unit of its own.
#define SHARDLENS_MODULE(Name)                                                              \
  class Name : public torch::nn::ModuleHolder<::shardlens::module::Hookable<Name##Impl>> {  \
   public:                                                                                  \
    using torch::nn::ModuleHolder<::shardlens::module::Hookable<Name##Impl>>::ModuleHolder; \
    using Impl [[maybe_unused]] = Name##Impl;                                               \
  }
