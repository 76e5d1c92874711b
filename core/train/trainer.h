#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "core/base/recorder.h"
#include "core/plan/step_settings.h"
#include "core/train/grad_scaler.h"
#include "core/train/optimizer.h"
#include "core/train/token_file.h"

namespace shardlens::dist {
class World;
}
namespace shardlens::fsdp {
class ShardedModel;
}
namespace shardlens::models {
class CausalLm;
}

namespace shardlens::train {

struct TrainOptions {
  int64_t steps = 10;
  plan::StepSettings step;
  double norm_type = 2;  // of the gradient norm, reported and clipped; inf: the maximum
  double lr = 1e-3, weight_decay = 0.01;
  GradScalerOptions scaler;  // where any unit computes or reduces in fp16
};

// What training works on; nothing is owned.
struct TrainContext {
  models::CausalLm* model = nullptr;
  fsdp::ShardedModel* sharded = nullptr;
  dist::World* world = nullptr;
  const TokenFile* tokens = nullptr;
  int64_t rank = 0, ranks = 1;              // whose samples are read
  Recorder* recorder = nullptr;             // may be null
  const std::atomic<bool>* stop = nullptr;  // may be null; training ends after the step under way
  c10::Device device{c10::kCPU};            // of the model's parameters
};

// What LibTorch's caching allocator has given out on this rank's device.
struct DeviceMemory {
  int64_t allocated_bytes = 0;       // after the step
  int64_t peak_allocated_bytes = 0;  // within it
};

struct StepReport {
  int64_t step = 0;
  double loss = 0;       // mean over ranks and microbatches; meaningless in an emulated world
  double grad_norm = 0;  // over all parameters, before clipping
  std::optional<double> loss_scale;  // that this step's gradients were scaled by, in fp16
  bool skipped = false;              // the optimizer did not step: an infinity on some rank
  double step_ms = 0;
  double tokens_per_s = 0;             // of all ranks
  int64_t unsharded_bytes = 0;         // of parameters that are still unsharded after the step
  std::optional<DeviceMemory> memory;  // of a device
};

// Runs the step loop: forward and backward of each microbatch, gradient norm (and clipping),
// optimizer. `on_step` is called after every step on every rank. Two runs with equal inputs give
// the same bits. Returns the number of steps done, fewer than asked only if `stop` was set. Errors:
// RuntimeFault naming step and rank for a loss that is not finite, on all ranks alike; whatever the
// engine throws.
int64_t train(const TrainContext& context,
              const TrainOptions& options,
              const std::function<void(const StepReport&)>& on_step);

}  // namespace shardlens::train
