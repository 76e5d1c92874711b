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

// null on a CPU, whose allocator keeps no account.
c10::DeviceAllocator* allocator_of(const c10::Device& device) {
  return device.is_cpu() ? nullptr : c10::getDeviceAllocator(device.type());
}

class Loop {
 public:
  Loop(const TrainContext& context, const TrainOptions& options)
      : context_(context),
        options_(options),
        optimizer_(make_optimizer(context.sharded->flat_shards(), options.optimizer)),
        samples_(context.tokens->samples(context.shape.seq)) {
    if (uses_fp16(context.sharded->plan())) {
      scaler_.emplace(context.world->emulated() ? nullptr : context.world, options.scaler,
                      context.device);
    }
  }

  StepReport run(int64_t step) {
    const auto begin = Clock::now();
    if (allocator_ != nullptr) {
      allocator_->resetPeakStats(context_.device.index());
    }
    losses_ =
        at::zeros({context_.shape.ranks}, at::TensorOptions(at::kDouble).device(context_.device));
    for (int64_t microbatch = 0; microbatch < options_.accumulate; ++microbatch) {
      losses_.narrow(0, context_.shape.rank, 1).add_(forward_backward(step, microbatch));
    }
    share_loss();
    StepReport report;
    report.step = step;
    if (scaler_) {
      report.loss_scale = scaler_->scale();
      scaler_->unscale(context_.sharded->flat_shards());
    }
    {
      const RangeScope range(context_.recorder, Range::kClip);
      report.grad_norm = context_.sharded->clip_grad_norm(
          options_.clip.value_or(std::numeric_limits<double>::infinity()), options_.norm_type);
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
    const BatchShape& shape = context_.shape;
    report.step_ms = elapsed.count() * 1e3;
    report.tokens_per_s =
        static_cast<double>(shape.ranks * shape.batch * shape.seq * options_.accumulate) /
        elapsed.count();
    report.unsharded_bytes = context_.sharded->unsharded_bytes();
    if (allocator_ != nullptr) {
      const auto stats = allocator_->getDeviceStats(context_.device.index());
      const c10::CachingAllocator::Stat& allocated = stats.allocated_bytes.front();  // of all pools
      report.memory = {allocated.current, allocated.peak};
    }
    return report;
  }

 private:
  // Returns this rank's loss, already divided by the number of microbatches; on a device it is not
  // waited for.
  at::Tensor forward_backward(int64_t step, int64_t microbatch) {
    const bool last = microbatch + 1 == options_.accumulate;
    if (options_.no_sync) {
      context_.sharded->set_requires_gradient_sync(last);
    }
    context_.sharded->begin_microbatch(last);
    const at::Tensor tokens = batch(step * options_.accumulate + microbatch);
    const int64_t seq = context_.shape.seq;
    at::Tensor loss;
    {
      const RangeScope range(context_.recorder, Range::kForward);
      const at::Tensor logits = context_.model->logits(tokens.narrow(1, 0, seq).contiguous());
      loss = models::token_loss(logits.flatten(0, 1), tokens.narrow(1, 1, seq).flatten());
    }
    if (options_.accumulate > 1) {
      loss = loss.div(static_cast<double>(options_.accumulate));
    }
    const RangeScope range(context_.recorder, Range::kBackward);
    (scaler_ ? scaler_->scale(loss) : loss).backward();
    return loss.detach();
  }

  // int64 [B, T + 1]
  at::Tensor batch(int64_t step) const {
    const BatchShape& shape = context_.shape;
    at::Tensor tokens = at::empty({shape.batch, shape.seq + 1}, at::kLong);
    auto* data = tokens.mutable_data_ptr<int64_t>();
    for (int64_t row = 0; row < shape.batch; ++row) {
      context_.tokens->read(sample_index(shape, step, row, samples_) * shape.seq,
                            {data + row * (shape.seq + 1), static_cast<size_t>(shape.seq + 1)});
    }
    return tokens.to(context_.device);
  }

  // Every rank has a slot of its own, so that all know which loss is not finite.
  void share_loss() {
    if (!context_.world->emulated() && context_.shape.ranks > 1) {
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
    for (int64_t rank = 0; rank < context_.shape.ranks; ++rank) {
      if (!std::isfinite(losses[rank])) {
        throw RuntimeFault(
            fmt::format("step {}: the loss of rank {} is {}; try a lower --lr or --clip", step,
                        rank, losses[rank]));
      }
      sum += losses[rank];
    }
    return context_.world->emulated() ? losses[context_.shape.rank]
                                      : sum / static_cast<double>(context_.shape.ranks);
  }

  const TrainContext& context_;
  const TrainOptions& options_;
  c10::DeviceAllocator* allocator_ = allocator_of(context_.device);
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<GradScaler> scaler_;
  int64_t samples_;
  at::Tensor losses_;  // fp64 [ranks], of the step
  dist::CompletionPtr shared_;
};

}  // namespace

int64_t train(const TrainContext& context,
              const TrainOptions& options,
              const std::function<void(const StepReport&)>& on_step) {
  Loop loop(context, options);
  for (int64_t step = 0; step < options.steps; ++step) {
    if (context.stop != nullptr && context.stop->load()) {
      return step;
    }
    if (context.recorder != nullptr) {
      context.recorder->step_begin(step);
    }
    const StepReport report = loop.run(step);
    if (context.recorder != nullptr) {
      context.recorder->step_end();
    }
    on_step(report);
  }
  return options.steps;
}

}  // namespace shardlens::train
