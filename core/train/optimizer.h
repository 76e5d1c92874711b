#pragma once

#include <memory>
#include <span>

#include <ATen/core/TensorBody.h>

#include "core/plan/step_settings.h"

namespace shardlens::train {

struct OptimizerOptions {
  plan::Optimizer kind = plan::Optimizer::kAdamW;
  double lr = 1e-3;
  double weight_decay = 0.01;  // AdamW: decoupled; SGD: added to the gradient
  double momentum = 0.9;       // SGD
  // Other settings are torch.optim's defaults: betas 0.9 and 0.999, eps 1e-8, no dampening, no
  // Nesterov.
};

// Updates all shards of a rank with a fused operator.
//
// Ownership  shares the shards' tensors; the state has one tensor per moment and shard, created at
//            the first step.
// Threads    not thread-safe.
// Source     torch.optim.AdamW(fused=True), torch.optim.SGD(fused=True), torch 2.11.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Updates every shard that has a gradient (grad() is defined).
  // `found_inf`: an fp32 tensor with one element; if that is not 0, the step changes nothing, and
  // the host need not know. Undefined: the step is always made.
  virtual void step(const at::Tensor& found_inf = {}) = 0;
};

// `shards`: fp32 tensors; each is updated in place from its grad().
[[nodiscard]] std::unique_ptr<Optimizer> make_optimizer(std::span<const at::Tensor> shards,
                                                        const OptimizerOptions& options);

}  // namespace shardlens::train
