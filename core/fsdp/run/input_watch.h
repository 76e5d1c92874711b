#pragma once

#include <cstdint>
#include <functional>

#include "core/module/hookable.h"

namespace shardlens::fsdp {

// Calls `ended` in a backward when the gradients of all `inputs` that require grad are computed.
// For a frozen unit, which has no gradients of its own, this is the end of the backward of one use.
// Does nothing if no input requires grad.
//
// kNode       replaces the inputs by aliases with a new node. The node runs before the backward of
//             the unit that made the inputs. FSDP2, RegisterPostBackwardFunction.
// kHooks      adds hooks to the inputs. They run after the pre-backward hook of the unit that made
//             the inputs. FSDP1, _register_post_backward_reshard_only_hook.
// Source      torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, _runtime_utils.py, torch
//             2.11.
enum class InputWatch : uint8_t { kNode, kHooks };
void watch_inputs(module::TensorRefs& inputs, InputWatch how, std::function<void()> ended);

}  // namespace shardlens::fsdp
