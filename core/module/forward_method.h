#pragma once

#include <utility>

#include "core/module/hookable.h"

namespace shardlens::module {
namespace detail {

// `call` takes `Params` and returns R.
template <typename R, typename... Params, typename Module, typename Call, typename... Args>
typename Result<R>::type run_as_forward(Module& module, const Call& call, Args&&... args) {
  using Value = typename Result<R>::type;
  auto* point = dynamic_cast<HookPoint*>(&module);
  if (point == nullptr) {
    return call(std::forward<Args>(args)...);
  }
  HeldArguments<typename HeldArgument<Params, false>::type...> held(std::in_place,
                                                                    std::forward<Args>(args)...);
  return point->template run_with_hooks<Value>(held, [&]() -> Value { return held.pass_to(call); });
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
auto run_as_forward(Module& module, R (Class::*method)(Params...), Args&&... args) {
  return detail::run_as_forward<R, Params...>(
      module,
      [&](Params... params) -> R { return (module.*method)(std::forward<Params>(params)...); },
      std::forward<Args>(args)...);
}
template <typename Module, typename Class, typename R, typename... Params, typename... Args>
auto run_as_forward(Module& module, R (Class::*method)(Params...) const, Args&&... args) {
  return detail::run_as_forward<R, Params...>(
      module,
      [&](Params... params) -> R { return (module.*method)(std::forward<Params>(params)...); },
      std::forward<Args>(args)...);
}

}  // namespace shardlens::module
