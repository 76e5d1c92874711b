#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/TensorBody.h>

namespace shardlens::dist {
class World;
}

namespace shardlens::train {

class Optimizer;

struct GradScalerOptions {  // as of torch.amp.GradScaler
  double scale = 65536;     // initial scale
  double growth = 2, backoff = 0.5;
  int64_t growth_interval = 2000;  // steps without infinities or NaNs before the scale grows
};

// Keeps fp16 gradients in range: the loss is multiplied by a scale, and the gradients are divided
// by it before the optimizer step. If the gradients of any rank contain an infinity or a NaN, all
// ranks skip the step, and the scale is reduced.
//
// Threads  the thread that trains; unscale() is a collective: all ranks must call it.
// Source   torch/distributed/fsdp/sharded_grad_scaler.py, torch/amp/grad_scaler.py, torch 2.11.
class GradScaler {
 public:
  // `world`: not owned; null if only one rank trains. `device`: device of the gradients.
  explicit GradScaler(dist::World* world,
                      const GradScalerOptions& options = {},
                      c10::Device device = c10::kCPU);

  [[nodiscard]] at::Tensor scale(const at::Tensor& loss) const;
  // Divides the gradients of the shards by the scale, and checks them for infinities and NaNs.
  void unscale(std::span<const at::Tensor> shards);
  // The optimizer step, which changes nothing if unscale() found an infinity or NaN. Does not wait
  // for a device.
  void step(Optimizer& optimizer) const;
  // fp32 [2]: the scale, and 1 if unscale() found an infinity or NaN, else 0. A new tensor on the
  // device.
  [[nodiscard]] at::Tensor state() const;
  // Call after each step: sets the scale of the next step.
  void update();
  [[nodiscard]] double scale() const;
  // Steps without infinities or NaNs since the scale last changed.
  [[nodiscard]] int64_t good_steps() const;
  // Continues with what scale() and good_steps() were.
  void restore(double scale, int64_t good_steps);

 private:
  dist::World* world_;
  GradScalerOptions options_;
  at::Tensor scale_;           // fp32 [1]
  at::Tensor growth_tracker_;  // int32 [1]: good steps since the scale last changed
  at::Tensor found_inf_;       // fp32 [1]: 1 if any rank has an infinity or NaN
};

}  // namespace shardlens::train
