#pragma once

#include <functional>

#include "core/module/hookable.h"

namespace shardlens::replicate {

// Passes the outputs that have a gradient edge through one autograd node. `on_backward` runs when
// its backward begins. An output that the loss does not use then sends an undefined gradient to the
// parameters behind it, so that the Reducer sees all parameters that the forward used. Outputs
// become copies: a view could be changed in place, edge and all. Source: _DDPSink,
// torch/nn/parallel/distributed.py, torch 2.11.
void pass_through_sink(module::TensorRefs& outputs, std::function<void()> on_backward);

}  // namespace shardlens::replicate
