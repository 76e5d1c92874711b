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
  // The rest are torch.optim's defaults: betas 0.9 and 0.999, eps 1e-8, no dampening, no Nesterov.
};

// Steps all shards of a rank in one fused operator.
//
// Ownership  keeps the shards; state is one tensor per moment and shard, made at the first step.
// Threads    not thread-safe.
// Source     torch.optim.AdamW(fused=True), torch.optim.SGD(fused=True), torch 2.11.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // One step over every shard that has a gradient (grad() defined).
  virtual void step() = 0;
};

// `shards`: fp32 tensors stepped in place, each updated from its grad().
[[nodiscard]] std::unique_ptr<Optimizer> make_optimizer(std::span<const at::Tensor> shards,
                                                        const OptimizerOptions& options);

}  // namespace shardlens::train
