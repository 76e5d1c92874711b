#include "core/train/trainer.h"

#include <chrono>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "core/base/error.h"
#include "core/dist/world.h"
#include "core/fsdp/fully_shard.h"
#include "core/models/model.h"
#include "core/models/ops.h"

namespace shardlens::train {
namespace {

using Clock = std::chrono::steady_clock;

bool uses_fp16(const plan::ResolvedPlan& plan) {
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    if (plan.param_dtype(id) == DType::kF16 || plan.reduce_dtype(id) == DType::kF16) {
      return true;
    }
  }
  return false;
}

// Null on a CPU, whose allocator has no statistics.
c10::DeviceAllocator* allocator_of(const c10::Device& device) {
  return device.is_cpu() ? nullptr : c10::getDeviceAllocator(device.type());
}

class Loop {
 public:
  Loop(const TrainContext& context, const TrainOptions& options)
      : context_(context),
        options_(options),
        shape_(shape_of(options.step, context.rank, context.ranks)),
        optimizer_(make_optimizer(context.sharded->flat_shards(),
                                  {.kind = options.step.optimizer,
                                   .lr = options.lr,
                                   .weight_decay = options.weight_decay,
                                   .momentum = options.step.momentum})),
        samples_(context.tokens->samples(shape_.seq)) {
    if (uses_fp16(context.sharded->plan())) {
      scaler_.emplace(context.world->emulated() ? nullptr : context.world, options.scaler,
                      context.device);
    }
  }

  // Whether the ranks have agreed, in the last step, to stop.
  [[nodiscard]] bool stopping() const { return stopping_; }

  StepReport run(int64_t step) {
    const auto begin = Clock::now();
    if (allocator_ != nullptr) {
      allocator_->resetPeakStats(context_.device.index());
    }
    for (int64_t microbatch = 0; microbatch < options_.step.accumulate; ++microbatch) {
      forward_backward(step, microbatch);
    }
    share_loss();
    StepReport report;
    report.step = step;
    {
      const RangeScope range(context_.recorder, Range::kClip);
      if (scaler_) {
        report.loss_scale = scaler_->scale();
        scaler_->unscale(context_.sharded->flat_shards());
      }
      report.grad_norm = context_.sharded->clip_grad_norm(
          options_.step.clip.value_or(std::numeric_limits<double>::infinity()), options_.norm_type);
    }
    report.loss = mean_loss(step);
    {
      const RangeScope range(context_.recorder, Range::kOptimizer);
      if (scaler_) {
        report.skipped = !scaler_->step(*optimizer_);
        scaler_->update();
      } else {
        optimizer_->step();
      }
      context_.sharded->optimizer_done();
      context_.sharded->zero_grad();
    }
    const std::chrono::duration<double> elapsed = Clock::now() - begin;
    report.step_ms = elapsed.count() * 1e3;
    report.tokens_per_s =
        static_cast<double>(shape_.ranks * shape_.batch * shape_.seq * options_.step.accumulate) /
        elapsed.count();
    report.unsharded_bytes = context_.sharded->unsharded_bytes();
    if (allocator_ != nullptr) {
      const auto stats = allocator_->getDeviceStats(context_.device.index());
      const c10::CachingAllocator::Stat& allocated = stats.allocated_bytes.front();  // all pools
      report.memory = {allocated.current, allocated.peak};
    }
    return report;
  }

 private:
  void forward_backward(int64_t step, int64_t microbatch) {
    const bool last = microbatch + 1 == options_.step.accumulate;
    if (!options_.step.sync_every_microbatch) {
      context_.sharded->set_requires_gradient_sync(last);
    }
    context_.sharded->begin_microbatch(last);
    const Batch tokens = batch(step * options_.step.accumulate + microbatch);
    at::Tensor loss;
    {
      const RangeScope range(context_.recorder, Range::kForward);
      const at::Tensor logits = context_.model->logits(tokens.inputs);
      loss = models::token_loss(logits.flatten(0, 1), tokens.targets);
      if (options_.step.accumulate > 1) {
        loss = loss.div(static_cast<double>(options_.step.accumulate));
      }
      note(loss.detach(), microbatch == 0);
    }
    const RangeScope range(context_.recorder, Range::kBackward);
    (scaler_ ? scaler_->scale(loss) : loss).backward();
  }

  // Adds the loss to this rank's slot; on a device, without waiting for the loss.
  void note(const at::Tensor& loss, bool first) {
    if (first) {
      losses_ =
          at::zeros({shape_.ranks + 1}, at::TensorOptions(at::kDouble).device(context_.device));
    }
    losses_.narrow(0, shape_.rank, 1).add_(loss);
  }

  // int64 [B, T] and [B · T]. Two separate tensors, so that no operator slices them on a device.
  struct Batch {
    at::Tensor inputs, targets;
  };
  Batch batch(int64_t step) const {
    Batch out{at::empty({shape_.batch, shape_.seq}, at::kLong),
              at::empty({shape_.batch * shape_.seq}, at::kLong)};
    const auto seq = static_cast<size_t>(shape_.seq);
    for (int64_t row = 0; row < shape_.batch; ++row) {
      const int64_t first = sample_index(shape_, step, row, samples_) * shape_.seq;
      const int64_t at = row * shape_.seq;
      context_.tokens->read(first, {out.inputs.mutable_data_ptr<int64_t>() + at, seq});
      context_.tokens->read(first + 1, {out.targets.mutable_data_ptr<int64_t>() + at, seq});
    }
    return {out.inputs.to(context_.device), out.targets.to(context_.device)};
  }

  // Every rank has its own slot, so that the error message can name the rank with a loss that is
  // not finite. The last slot counts the ranks that were asked to stop: all ranks end after the
  // same step, although a signal reaches them in different steps.
  void share_loss() {
    if (context_.stop != nullptr && context_.stop->load()) {
      losses_.narrow(0, shape_.ranks, 1).fill_(1);
    }
    if (!context_.world->emulated() && shape_.ranks > 1) {
      shared_ =
          context_.world->world().all_reduce(losses_, dist::ReduceOp::kSum, {kNoUnit, "loss", 0});
    }
  }

  double mean_loss(int64_t step) {
    if (shared_ != nullptr) {
      context_.world->world().wait(shared_);
      shared_.reset();
    }
    const at::Tensor on_host = losses_.cpu();
    const auto* losses = on_host.const_data_ptr<double>();
    double sum = 0;
    for (int64_t rank = 0; rank < shape_.ranks; ++rank) {
      if (!std::isfinite(losses[rank])) {
        throw RuntimeFault(
            fmt::format("step {}: the loss of rank {} is {}; try a lower --lr or --clip", step,
                        rank, losses[rank]));
      }
      sum += losses[rank];
    }
    stopping_ = losses[shape_.ranks] > 0;
    return context_.world->emulated() ? losses[shape_.rank]
                                      : sum / static_cast<double>(shape_.ranks);
  }

  const TrainContext& context_;
  const TrainOptions& options_;
  c10::DeviceAllocator* allocator_ = allocator_of(context_.device);
  BatchShape shape_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<GradScaler> scaler_;
  int64_t samples_;
  at::Tensor losses_;  // fp64 [ranks + 1]; losses of the current step, and who is to stop
  bool stopping_ = false;
  dist::CompletionPtr shared_;
};

}  // namespace

int64_t train(const TrainContext& context,
              const TrainOptions& options,
              const std::function<void(const StepReport&)>& on_step) {
  Loop loop(context, options);
  for (int64_t step = 0; step < options.steps; ++step) {
    if (context.recorder != nullptr) {
      context.recorder->step_begin(step);
    }
    const StepReport report = loop.run(step);
    if (context.recorder != nullptr) {
      context.recorder->step_end();
    }
    on_step(report);
    if (loop.stopping()) {
      return step + 1;
    }
  }
  return options.steps;
}

}  // namespace shardlens::train
