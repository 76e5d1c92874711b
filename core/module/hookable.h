#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "core/composable/registry.h"
#include "core/module/activation_checkpoint.h"
#include "core/module/forward_hooks.h"
#include "core/module/forward_shape.h"
#include "core/module/held_arguments.h"
#include "core/module/tensors_in.h"

namespace shardlens::module {

namespace detail {

// The result of a forward that returns R, with hooks: references become values, because hooks
// assign to the tensors.
template <typename R>
struct Result {
  using type = std::remove_cvref_t<R>;
  static_assert(!std::is_void_v<R>,
                "SHARDLENS_MODULE: forward returns void; return the tensors that it computes, so "
                "that their backward can be detected");
  static_assert(std::is_void_v<R> || kTensorsVisible<type>,
                "SHARDLENS_MODULE: the result of forward has a type whose tensors cannot be found, "
                "so their backward would use parameters that are not there; return tensors in a "
                "struct with at most 12 public members, a container, a tuple or an optional, or "
                "declare for_each_tensor for the class (core/module/tensors_in.h)");
};

template <typename Impl>
class HookedBase : public Impl, public HookPoint {
 public:
  using Impl::Impl;

  // Errors: UsageError while an API such as fully_shard manages the module.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<c10::Device>& device = std::nullopt) const override {
    composable::refuse_copy(*this);
    return Impl::clone(device);
  }

  // Errors: UsageError while fully_shard manages the module.
  void save(torch::serialize::OutputArchive& archive) const override {
    composable::refuse_slices(*this);
    Impl::save(archive);
  }

 protected:
  // `Self` is Impl or const Impl.
  template <typename R, typename Self, typename Held>
  R forward_with_hooks(Self& self, Held held) {
    const auto run = [&self](Held& arguments) -> R {
      return arguments.pass_to([&self](auto&&... each) -> R {
        return self.Impl::forward(std::forward<decltype(each)>(each)...);
      });
    };
    return this->template run_with_hooks<R>(held, [&]() -> R {
      if (!checkpoint() || !at::GradMode::is_enabled()) {
        return run(held);
      }
      if constexpr (Held::kRepeatable) {
        const CheckpointScope scope(*checkpoint(), [module = this->shared_from_this(), self = &self,
                                                    saved = held.for_later()] {
          auto again = saved;
          static_cast<void>(again.pass_to([self](auto&&... each) -> R {
            return self->Impl::forward(std::forward<decltype(each)>(each)...);
          }));
        });
        return run(held);
      } else {
        refuse_checkpoint(*checkpoint());
      }
    });
  }
};

// A forward with one signature. The hooked one has the same, so that Sequential, AnyModule and
// ModuleHolder accept it.
template <typename Impl, typename Forward>
class WithHooks : public HookedBase<Impl> {
  static_assert(!sizeof(Forward),
                "SHARDLENS_MODULE: forward must be a non-static method that can be called on an "
                "lvalue");
};

template <typename Impl, typename Class, typename R, typename... Args>
class WithHooks<Impl, R (Class::*)(Args...)> : public HookedBase<Impl> {
 public:
  using HookedBase<Impl>::HookedBase;

  typename Result<R>::type forward(Args... args) {
    return this->template forward_with_hooks<typename Result<R>::type>(
        static_cast<Impl&>(*this), HeldArguments<typename HeldArgument<Args, false>::type...>(
                                       std::in_place, std::forward<Args>(args)...));
  }
};

template <typename Impl, typename Class, typename R, typename... Args>
class WithHooks<Impl, R (Class::*)(Args...) const> : public HookedBase<Impl> {
 public:
  using HookedBase<Impl>::HookedBase;

  // Hooks change the module's state around the forward, so modules are never constant objects.
  typename Result<R>::type forward(Args... args) const {
    return const_cast<WithHooks*>(this)  // NOLINT(cppcoreguidelines-pro-type-const-cast)
        ->template forward_with_hooks<typename Result<R>::type>(
            static_cast<const Impl&>(*this),
            HeldArguments<typename HeldArgument<Args, false>::type...>(
                std::in_place, std::forward<Args>(args)...));
  }
};

template <typename Impl, typename Class, typename R, typename... Args>
class WithHooks<Impl, R (Class::*)(Args...) noexcept>
    : public WithHooks<Impl, R (Class::*)(Args...)> {
 public:
  using WithHooks<Impl, R (Class::*)(Args...)>::WithHooks;
};
template <typename Impl, typename Class, typename R, typename... Args>
class WithHooks<Impl, R (Class::*)(Args...) const noexcept>
    : public WithHooks<Impl, R (Class::*)(Args...) const> {
 public:
  using WithHooks<Impl, R (Class::*)(Args...) const>::WithHooks;
};
template <typename Impl, typename Class, typename R, typename... Args>
class WithHooks<Impl, R (Class::*)(Args...)&> : public WithHooks<Impl, R (Class::*)(Args...)> {
 public:
  using WithHooks<Impl, R (Class::*)(Args...)>::WithHooks;
};

// Any other forward: overloaded, a template, or with default arguments. It has no address, so
// Sequential does not accept it, as it would not accept Impl's.
template <typename Impl>
class WithAnyHooks : public HookedBase<Impl> {
 public:
  using HookedBase<Impl>::HookedBase;

  template <typename... Args>
  requires ForwardTakes<Impl, Args...>
  auto forward(Args&&... args) {
    using R = decltype(std::declval<Impl&>().forward(std::declval<Args>()...));
    return [&]<size_t... Is>(std::index_sequence<Is...> indices) {
      using Indices = decltype(indices);
      return this->template forward_with_hooks<typename Result<R>::type>(
          static_cast<Impl&>(*this),
          HeldArguments<typename HeldArgument<
              Args, kTakesTemporary<Impl, Is, std::tuple<Args...>, Indices>>::type...>(
              std::in_place, std::forward<Args>(args)...));
    }
    (std::index_sequence_for<Args...>());
  }
};

template <typename Impl>
consteval auto hooked_class() {
  static_assert(HasForward<Impl>, "SHARDLENS_MODULE: the class has no method forward");
  if constexpr (!HasOneForward<Impl>) {
    return std::type_identity<WithAnyHooks<Impl>>();
  } else if constexpr (kHasDefaults<Impl, decltype(&Impl::forward)> && !DeclaresDefaults<Impl>) {
    return std::type_identity<WithAnyHooks<Impl>>();
  } else {
    return std::type_identity<WithHooks<Impl, decltype(&Impl::forward)>>();
  }
}
template <typename Impl>
using HookedClass = typename decltype(hooked_class<Impl>())::type;

}  // namespace detail

// `Impl` with forward hooks: derives from Impl and shadows `forward`. FQNs, parameters and type
// checks do not change.
//
// Arguments  by value, by reference and const, also with defaults. Hooks replace tensors in copies;
//            an object that `forward` takes by non-const reference is the caller's.
// Overloads  forward may be overloaded or a template. It is then called with arguments, not with
//            braced lists.
// Results    values whose tensors can be found (tensors_in.h); else the class does not compile.
// Source     tested inside torch::nn::Sequential with LibTorch 2.11.
template <typename Impl>
class Hookable : public detail::HookedClass<Impl> {
  using Base = detail::HookedClass<Impl>;

 public:
  using Base::Base;
};

}  // namespace shardlens::module

// Use instead of TORCH_MODULE(Name): the holder creates a Hookable<NameImpl>, so that the module
// can be a unit. The call operator is that of ModuleHolder, but also for overloads and templates.
#define SHARDLENS_MODULE(Name)                                                              \
  class Name : public torch::nn::ModuleHolder<::shardlens::module::Hookable<Name##Impl>> {  \
   public:                                                                                  \
    using torch::nn::ModuleHolder<::shardlens::module::Hookable<Name##Impl>>::ModuleHolder; \
    using Impl [[maybe_unused]] = Name##Impl;                                               \
    template <typename... Args>                                                             \
    auto operator()(Args&&... args) {                                                       \
      return (*this)->forward(::std::forward<Args>(args)...);                               \
    }                                                                                       \
  }
