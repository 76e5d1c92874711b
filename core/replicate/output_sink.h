#pragma once

#include <functional>

#include "core/module/hookable.h"

namespace shardlens::replicate {

// Passes the outputs that have a gradient edge through one autograd node. `on_backward` runs when
// the backward of this node begins. An output that the loss does not use then sends an undefined
// gradient to its parameters, so that the Reducer gets all parameters that the forward used. The
// outputs are replaced by copies: with views, a change in place would also change the gradient
// edge. Source: _DDPSink, torch/nn/parallel/distributed.py, torch 2.11.
void pass_through_sink(module::TensorRefs& outputs, std::function<void()> on_backward);

}  // namespace shardlens::replicate
