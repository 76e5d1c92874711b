#include "core/train/optimizer.h"

#include <optional>
#include <vector>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace shardlens::train {
namespace {

constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.999;
constexpr double kEpsilon = 1e-8;

// The optimizer state of one shard. Its tensors are undefined until the first step: they are
// created lazily, as torch.optim does.
struct Slot {
  at::Tensor shard;
  at::Tensor first, second;  // AdamW: moments; SGD: `first` is the momentum buffer
  at::Tensor step;           // AdamW: fp32 scalar, counts from 1
};

std::vector<Slot> slots_of(std::span<const at::Tensor> shards) {
  std::vector<Slot> slots;
  for (const at::Tensor& shard : shards) {
    slots.push_back({shard, {}, {}, {}});
  }
  return slots;
}

std::optional<at::Tensor> given(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

class AdamW final : public Optimizer {
 public:
  AdamW(std::span<const at::Tensor> shards, const OptimizerOptions& options)
      : options_(options), slots_(slots_of(shards)) {}

  void step(const at::Tensor& found_inf) override {
    const c10::NoGradGuard no_grad;
    std::vector<at::Tensor> values, grads, firsts, seconds, steps;
    for (Slot& slot : slots_) {
      if (!slot.shard.grad().defined()) {
        continue;
      }
      if (!slot.first.defined()) {
        slot.first = at::zeros_like(slot.shard);
        slot.second = at::zeros_like(slot.shard);
        slot.step = at::zeros({}, slot.shard.options().dtype(at::kFloat).requires_grad(false));
      }
      values.push_back(slot.shard.detach());
      grads.push_back(slot.shard.grad());
      firsts.push_back(slot.first);
      seconds.push_back(slot.second);
      steps.push_back(slot.step);
    }
    if (values.empty()) {
      return;
    }
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(values, grads, firsts, seconds, {}, steps, options_.lr, kBeta1, kBeta2,
                      options_.weight_decay, kEpsilon,
                      /*amsgrad=*/false,
                      /*maximize=*/false, /*grad_scale=*/{}, given(found_inf));
    if (found_inf.defined()) {
      at::_foreach_sub_(steps, std::vector<at::Tensor>(steps.size(), found_inf.squeeze(0)));
    }
  }

 private:
  OptimizerOptions options_;
  std::vector<Slot> slots_;
};

class Sgd final : public Optimizer {
 public:
  Sgd(std::span<const at::Tensor> shards, const OptimizerOptions& options)
      : options_(options), slots_(slots_of(shards)) {}

  // A buffer of zeros has the same first step as torch.optim's, which starts with the gradient.
  void step(const at::Tensor& found_inf) override {
    const c10::NoGradGuard no_grad;
    std::vector<at::Tensor> values, grads, buffers;
    for (Slot& slot : slots_) {
      if (!slot.shard.grad().defined()) {
        continue;
      }
      values.push_back(slot.shard.detach());
      grads.push_back(slot.shard.grad());
      if (options_.momentum != 0) {
        if (!slot.first.defined()) {
          slot.first = at::zeros_like(slot.shard);
        }
        buffers.push_back(slot.first);
      }
    }
    if (!values.empty()) {
      at::_fused_sgd_(values, grads, buffers, options_.weight_decay, options_.momentum, options_.lr,
                      /*dampening=*/0.0,
                      /*nesterov=*/false,
                      /*maximize=*/false, /*is_first_step=*/false, /*grad_scale=*/{},
                      given(found_inf));
    }
  }

 private:
  OptimizerOptions options_;
  std::vector<Slot> slots_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(std::span<const at::Tensor> shards,
                                          const OptimizerOptions& options) {
  if (options.kind == plan::Optimizer::kSgd) {
    return std::make_unique<Sgd>(shards, options);
  }
  return std::make_unique<AdamW>(shards, options);
}

}  // namespace shardlens::train
