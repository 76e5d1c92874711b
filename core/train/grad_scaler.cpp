#include "core/train/grad_scaler.h"

#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "core/dist/world.h"
#include "core/train/optimizer.h"

namespace shardlens::train {

GradScaler::GradScaler(dist::World* world, const GradScalerOptions& options, c10::Device device)
    : world_(world),
      options_(options),
      scale_(at::full({1}, options.scale, at::TensorOptions(at::kFloat).device(device))),
      growth_tracker_(at::zeros({1}, at::TensorOptions(at::kInt).device(device))),
      found_inf_(at::zeros({1}, at::TensorOptions(at::kFloat).device(device))) {}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  return loss * scale_.squeeze(0).to(loss.scalar_type());
}

void GradScaler::unscale(std::span<const at::Tensor> shards) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> grads, offloaded;  // on the device; on the host
  for (const at::Tensor& shard : shards) {
    if (shard.grad().defined()) {
      (shard.is_cpu() && !scale_.is_cpu() ? offloaded : grads).push_back(shard.grad());
    }
  }
  found_inf_.zero_();
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  if (!grads.empty()) {
    at::_amp_foreach_non_finite_check_and_unscale_(grads, found_inf_, inverse);
  }
  if (!offloaded.empty()) {
    at::Tensor found = at::zeros({1}, at::kFloat);
    at::_amp_foreach_non_finite_check_and_unscale_(offloaded, found, inverse.cpu());
    found_inf_.add_(found.to(found_inf_.device())).clamp_max_(1);
  }
  if (world_ != nullptr && world_->size() > 1) {
    dist::Communicator& all = world_->world();
    all.wait(all.all_reduce(found_inf_, dist::ReduceOp::kMax,
                            {kNoUnit, "the gradient scaler's infinities", 0}));
  }
}

void GradScaler::step(Optimizer& optimizer) const {
  optimizer.step(found_inf_);
}

at::Tensor GradScaler::state() const {
  return at::cat({scale_, found_inf_});
}

void GradScaler::update() {
  const at::NoGradGuard no_grad;
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf_, options_.growth, options_.backoff,
                         options_.growth_interval);
}

double GradScaler::scale() const {
  return scale_.item<float>();
}

int64_t GradScaler::good_steps() const {
  return growth_tracker_.item<int>();
}

void GradScaler::restore(double scale, int64_t good_steps) {
  const at::NoGradGuard no_grad;
  scale_.fill_(scale);
  growth_tracker_.fill_(good_steps);
}

}  // namespace shardlens::train
