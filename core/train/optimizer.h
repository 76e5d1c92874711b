#pragma once

#include <memory>
#include <span>
#include <string_view>

#include <ATen/core/TensorBody.h>

#include "core/fsdp/unit/flat_param_types.h"
#include "core/workload/step_settings.h"

namespace shardlens::train {

struct OptimizerOptions {  // the optimizer and its settings
  plan::Optimizer kind = plan::Optimizer::kAdamW;
  double lr = 1e-3;
  double weight_decay = 0.01;  // AdamW: decoupled; SGD: added to the gradient
  double momentum = 0.9;       // SGD
  // Other settings are torch.optim's defaults: betas 0.9 and 0.999, eps 1e-8, no dampening, no
  // Nesterov.
};

// The optimizer's state of one shard. Its tensors are undefined until the first step with a
// gradient: they are created lazily, as torch.optim does.
struct ShardState {
  at::Tensor shard;
  at::Tensor first, second;  // of the shard's shape; AdamW: moments; SGD: `first` is the momentum
  at::Tensor step;           // AdamW: fp32 scalar, counts from 1

  [[nodiscard]] const at::Tensor& moment(size_t index) const { return index == 0 ? first : second; }
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
  // Updates only these shards, by the given gradients: for fsdp::OptimizerInBackward.
  virtual void step_in_backward(std::span<const fsdp::ShardUpdate> updates) = 0;
  // torch.optim's names of moment(0), moment(1): AdamW's two, SGD's one if there is momentum.
  [[nodiscard]] virtual std::span<const std::string_view> moments() const = 0;
  // The state of every shard, in the shards' order; shares its tensors.
  [[nodiscard]] virtual std::span<const ShardState> states() const = 0;
  // Gives a shard the state of after `steps` steps, for the caller to fill: with the moments that
  // it has, or moments of zeros.
  virtual void create_state(size_t shard, double steps) = 0;
};

// `shards`: fp32 tensors; each is updated in place from its grad().
[[nodiscard]] std::unique_ptr<Optimizer> make_optimizer(std::span<const at::Tensor> shards,
                                                        const OptimizerOptions& options);

}  // namespace shardlens::train
