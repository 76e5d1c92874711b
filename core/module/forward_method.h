#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "core/module/hookable.h"

namespace shardlens::module {
namespace detail {

// `call` takes `Params`. The arguments are stored during the call, so that hooks can replace the
// tensors among them.
template <typename R, typename... Params, typename Module, typename Call, typename... Args>
R run_as_forward(Module& module, const Call& call, Args&&... args) {
  std::tuple<std::decay_t<Params>...> held(std::forward<Args>(args)...);
  const auto body = [&]() -> R {
    return std::apply(
        [&](auto&... each) -> R {
          return call(std::forward<Params>(static_cast<std::decay_t<Params>&>(each))...);
        },
        held);
  };
  auto* point = dynamic_cast<HookPoint*>(&module);
  return point == nullptr ? body() : point->template run_with_hooks<R>(held, body);
}

}  // namespace detail

// Runs a method of a module other than forward, with the hooks of forward before and after it, so
// that the parameters of a unit are unsharded in the method and its backward is handled:
//
//   run_as_forward(*model, &ModelImpl::encode, images)
//
// If the module has no hooks, only the method runs. The method is never checkpointed. A call of
// `forward` inside the method is Impl's own and runs no hooks.
//
// Source      register_fsdp_forward_method, torch/distributed/fsdp/_fully_shard/_fully_shard.py,
//             torch 2.11 (which replaces the method permanently; C++ cannot replace a method).
template <typename Module, typename Class, typename R, typename... Params, typename... Args>
R run_as_forward(Module& module, R (Class::*method)(Params...), Args&&... args) {
  return detail::run_as_forward<R, Params...>(
      module,
      [&](Params... params) -> R { return (module.*method)(std::forward<Params>(params)...); },
      std::forward<Args>(args)...);
}
template <typename Module, typename Class, typename R, typename... Params, typename... Args>
R run_as_forward(Module& module, R (Class::*method)(Params...) const, Args&&... args) {
  return detail::run_as_forward<R, Params...>(
      module,
      [&](Params... params) -> R { return (module.*method)(std::forward<Params>(params)...); },
      std::forward<Args>(args)...);
}

}  // namespace shardlens::module
