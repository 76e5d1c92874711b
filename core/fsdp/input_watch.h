#pragma once

#include <cstdint>
#include <functional>

#include "core/module/hookable.h"

namespace shardlens::fsdp {

// Calls `ended` in a backward when the gradients of all `inputs` that require grad have come: the
// end of a use of a unit that has no gradients of its own, because it is frozen. Nothing happens if
// none requires grad.
//
// kNode       a node before the inputs, which become aliases of themselves; it runs before the unit
//             that made them begins its backward. FSDP2, RegisterPostBackwardFunction.
// kHooks      hooks on the inputs, which run after that one's. FSDP1,
//             _register_post_backward_reshard_only_hook.
// Source      torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, _runtime_utils.py, torch
//             2.11.
enum class InputWatch : uint8_t { kNode, kHooks };
void watch_inputs(module::TensorRefs& inputs, InputWatch how, std::function<void()> ended);

}  // namespace shardlens::fsdp
