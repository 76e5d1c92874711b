#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/TensorBody.h>

namespace shardlens::dist {
class World;
}

namespace shardlens::train {

class Optimizer;

struct GradScalerOptions {
  double scale = 65536;  // the first
  double growth = 2, backoff = 0.5;
  int64_t growth_interval = 2000;  // steps without an infinity before the scale grows
};

// Keeps fp16 gradients in range: the loss is multiplied by a scale, the gradients are divided by it
// again before the optimizer sees them. A step in which any rank's gradients hold an infinity or a
// NaN is skipped by all ranks, and the scale backs off.
//
// Threads  the thread that trains; unscale() is a collective, which all ranks call.
// Source   torch/distributed/fsdp/sharded_grad_scaler.py, torch/amp/grad_scaler.py, torch 2.11.
class GradScaler {
 public:
  // `world`: not owned; null where one rank trains alone.
  explicit GradScaler(dist::World* world,
                      const GradScalerOptions& options = {},
                      c10::Device device = c10::kCPU);  // of the gradients

  [[nodiscard]] at::Tensor scale(const at::Tensor& loss) const;
  // Divides the gradients of the shards by the scale, and looks for infinities.
  void unscale(std::span<const at::Tensor> shards);
  // Steps unless unscale() found an infinity. Returns whether it did.
  bool step(Optimizer& optimizer) const;
  // After the step: the scale of the next one.
  void update();
  [[nodiscard]] double scale() const;

 private:
  dist::World* world_;
  GradScalerOptions options_;
  at::Tensor scale_;           // fp32 [1]
  at::Tensor growth_tracker_;  // int32 [1]: steps without an infinity since the last change
  at::Tensor found_inf_;       // fp32 [1]: 1 if any rank has one
};

}  // namespace shardlens::train
