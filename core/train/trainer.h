#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "core/base/recorder.h"
#include "core/train/grad_scaler.h"
#include "core/train/optimizer.h"
#include "core/train/token_file.h"
#include "core/workload/step_settings.h"

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

class RunCheckpoints;

struct TrainOptions {  // how long and how a run trains
  int64_t steps = 10;  // in all, with those before a checkpoint from which the run resumes
  plan::StepSettings step;
  double norm_type = 2;  // p of the gradient norm that is reported and clipped; inf: the maximum
  double lr = 1e-3, weight_decay = 0.01;
  GradScalerOptions scaler;  // used if any unit computes or reduces in fp16
  // End when no rank has a batch of samples left that no rank has read (`steps` is then the most).
  // In the last microbatch only the first ranks may have one, and the others join (fsdp::Join);
  // loss and gradients of the step are the means over the batches that there are. Samples that do
  // not fill a batch are not used. Not in an emulated world.
  bool one_epoch = false;
};

// The objects that training uses; it owns none of them.
struct TrainContext {
  models::CausalLm* model = nullptr;
  fsdp::ShardedModel* sharded = nullptr;
  dist::World* world = nullptr;
  const TokenFile* tokens = nullptr;
  int64_t rank = 0, ranks = 1;   // determine which samples are read
  Recorder* recorder = nullptr;  // may be null
  // May be null. If it is set on any rank, all ranks end after the same step.
  const std::atomic<bool>* stop = nullptr;
  c10::Device device{c10::kCPU};  // device of the model's parameters
  // Where training starts, and what it saves; may be null. Its parameters must be restored.
  RunCheckpoints* checkpoints = nullptr;
};

// Memory that LibTorch's caching allocator has allocated on this rank's device.
struct DeviceMemory {
  int64_t allocated_bytes = 0;       // after the step
  int64_t peak_allocated_bytes = 0;  // during the step
};

struct StepReport {  // figures of one step
  int64_t step = 0;
  double loss = 0;       // mean over ranks and microbatches; has no meaning in an emulated world
  double grad_norm = 0;  // over all parameters, before clipping
  std::optional<double> loss_scale = {};  // scale of this step's loss and gradients, in fp16
  bool skipped = false;                   // no optimizer step: some rank had an infinity or NaN
  double step_ms = 0;
  double tokens_per_s = 0;                  // all ranks together
  int64_t unsharded_bytes = 0;              // parameters that are still unsharded after the step
  std::optional<DeviceMemory> memory = {};  // only on a device
};

// The steps that train() makes in all, with those before a checkpoint.
[[nodiscard]] int64_t steps_of(const TrainContext& context, const TrainOptions& options);

// Runs the step loop: forward and backward of each microbatch, gradient norm (and clipping),
// optimizer. `on_step` is called after every step on every rank, before a checkpoint is saved. Two
// runs with equal inputs have bitwise equal results. Returns the number of steps done in all, fewer
// than steps_of() only if `stop` was set; the last one is saved in any case. Errors: RuntimeFault
// naming step and rank, on all ranks, for a loss that is not finite; all errors of the engine.
int64_t train(const TrainContext& context,
              const TrainOptions& options,
              const std::function<void(const StepReport&)>& on_step);

}  // namespace shardlens::train
