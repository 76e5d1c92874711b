#include "core/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "core/base/error.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/fsdp/apply/uneven_inputs.h"
#include "core/models/model.h"
#include "core/models/ops.h"
#include "core/plan/resolve.h"
#include "core/train/run_checkpoints.h"
#include "core/workload/step_support.h"

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

// Which microbatches an epoch has. All ranks get the same answers.
class Epoch {
 public:
  Epoch(const BatchShape& shape, int64_t samples) : shape_(shape) {
    batches_ = std::max<int64_t>(0, samples - shape.first_sample) / shape.batch;
  }
  [[nodiscard]] int64_t microbatches() const {
    return (batches_ + shape_.ranks - 1) / shape_.ranks;
  }
  [[nodiscard]] int64_t batches_of(int64_t microbatch) const {
    return std::clamp<int64_t>(batches_ - microbatch * shape_.ranks, 0, shape_.ranks);
  }
  [[nodiscard]] bool has_batch(int64_t microbatch) const {
    return shape_.rank < batches_of(microbatch);
  }

 private:
  BatchShape shape_;
  int64_t batches_ = 0;  // of all ranks
};

BatchShape shape_from(const TrainContext& context, const TrainOptions& options) {
  BatchShape shape = shape_of(options.step, context.rank, context.ranks);
  if (context.checkpoints != nullptr) {
    shape.first_sample = context.checkpoints->start().samples;
  }
  return shape;
}

class Loop {
 public:
  Loop(const TrainContext& context, const TrainOptions& options)
      : context_(context),
        options_(options),
        shape_(shape_from(context, options)),
        optimizer_(make_optimizer(context.sharded->flat_shards(),
                                  {.kind = options.step.optimizer,
                                   .lr = options.lr,
                                   .weight_decay = options.weight_decay,
                                   .momentum = options.step.momentum})),
        samples_(context.tokens->samples(shape_.seq)),
        first_step_(context.checkpoints == nullptr ? 0 : context.checkpoints->start().step),
        steps_(steps_of(context, options)),
        microbatches_((steps_ - first_step_) * options.step.accumulate) {
    if (options.one_epoch) {
      epoch_.emplace(shape_, samples_);
      microbatches_ = std::min(microbatches_, epoch_->microbatches());
      join_.emplace(*context.sharded, *context.world);
    }
    const plan::ResolvedPlan& plan = context.sharded->plan();
    plan::require_step_support(plan, options.step);
    if (plan.steps_in_backward()) {
      context.sharded->set_optimizer_in_backward(
          {[optimizer = optimizer_](std::span<const fsdp::ShardUpdate> updates) {
             optimizer->step_in_backward(updates);
           },
           options.norm_type});
    }
    if (uses_fp16(context.sharded->plan())) {
      scaler_.emplace(context.world->emulated() ? nullptr : context.world, options.scaler,
                      context.device);
    }
    if (context.checkpoints != nullptr) {
      context.checkpoints->restore_state(*optimizer_, scaler());
    }
  }

  [[nodiscard]] int64_t first_step() const { return first_step_; }
  [[nodiscard]] int64_t steps() const { return steps_; }

  void save_if_due(int64_t steps) {
    const bool last = stopping_ || steps == steps_;
    if (context_.checkpoints != nullptr) {
      context_.checkpoints->see(saved_);
    }
    if (context_.checkpoints != nullptr && context_.checkpoints->is_due(steps, last)) {
      const int64_t microbatches = (steps - first_step_) * options_.step.accumulate;
      context_.checkpoints->save(*optimizer_, scaler(), steps,
                                 shape_.first_sample + microbatches * shape_.ranks * shape_.batch,
                                 last);
    }
  }

  // Whether the ranks have agreed, in the last step, to stop.
  [[nodiscard]] bool stopping() const { return stopping_; }

  StepReport run(int64_t step) {
    const auto begin = Clock::now();
    if (allocator_ != nullptr) {
      allocator_->resetPeakStats(context_.device.index());
    }
    losses_.reset();
    const int64_t first = (step - first_step_) * options_.step.accumulate;
    const int64_t count = std::min(options_.step.accumulate, microbatches_ - first);
    int64_t batches = 0;  // of all ranks
    for (int64_t index = first; index < first + count; ++index) {
      batches += epoch_ ? epoch_->batches_of(index) : shape_.ranks;
    }
    // The mean over ranks of the sum over microbatches is then the mean over the batches.
    const double divisor = static_cast<double>(batches) / static_cast<double>(shape_.ranks);
    for (int64_t index = first; index < first + count; ++index) {
      forward_backward(index, divisor, index + 1 == first + count);
    }
    share_loss();
    at::Tensor numbers;
    {
      const RangeScope range(context_.recorder, Range::kClip);
      if (scaler_) {
        scaler_->unscale(context_.sharded->flat_shards());
      }
      const at::Tensor norm = context_.sharded->issue_clip_grad_norm(
          options_.step.clip.value_or(std::numeric_limits<double>::infinity()), options_.norm_type);
      numbers = collect(norm);
    }
    {
      const RangeScope range(context_.recorder, Range::kOptimizer);
      if (scaler_) {
        scaler_->step(*optimizer_);
        scaler_->update();
      } else {
        optimizer_->step();
      }
      context_.sharded->optimizer_done();
      context_.sharded->zero_grad();
    }
    StepReport report = read(step, numbers);
    const std::chrono::duration<double> elapsed = Clock::now() - begin;
    report.step_ms = elapsed.count() * 1e3;
    report.tokens_per_s =
        static_cast<double>(batches * shape_.batch * shape_.seq) / elapsed.count();
    context_.sharded->free_finished();
    report.unsharded_bytes = context_.sharded->unsharded_bytes();
    if (allocator_ != nullptr) {
      const auto stats = allocator_->getDeviceStats(context_.device.index());
      const c10::CachingAllocator::Stat& allocated = stats.allocated_bytes.front();  // all pools
      report.memory = {allocated.current, allocated.peak};
    }
    return report;
  }

 private:
  GradScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }

  // `index`: of the microbatch, from the first step of this run. `divisor`: of its loss.
  void forward_backward(int64_t index, double divisor, bool last) {
    if (!options_.step.sync_every_microbatch) {
      context_.sharded->set_requires_gradient_sync(last);
    }
    context_.sharded->begin_microbatch(last);
    if (join_) {
      join_->next(epoch_->has_batch(index));
      if (!join_->has_batch()) {
        const RangeScope range(context_.recorder, Range::kBackward);
        join_->shadow();
        return;
      }
    }
    const Batch tokens = next_ ? *std::exchange(next_, std::nullopt) : batch(index);
    at::Tensor loss;
    {
      const RangeScope range(context_.recorder, Range::kForward);
      const at::Tensor logits = context_.model->logits(tokens.inputs);
      loss = models::token_loss(logits.flatten(0, 1), tokens.targets);
      if (divisor != 1) {
        loss = loss.div(divisor);
      }
      // On a device, without waiting for the loss.
      slot(shape_.rank).add_(loss.detach());
    }
    {
      const RangeScope range(context_.recorder, Range::kBackward);
      (scaler_ ? scaler_->scale(loss) : loss).backward();
    }
    if (!context_.device.is_cpu() && index + 1 < microbatches_ &&
        (!epoch_ || epoch_->has_batch(index + 1))) {
      next_ = batch(index + 1);  // while the device works on this one
    }
  }

  // int64 [B, T] and [B · T]. Two separate tensors, so that no operator slices them on a device.
  struct Batch {
    at::Tensor inputs, targets;
  };
  // On a device: copied from pinned memory, so that the host does not wait.
  Batch batch(int64_t step) const {
    const auto options = at::TensorOptions(at::kLong).pinned_memory(!context_.device.is_cpu());
    Batch out{at::empty({shape_.batch, shape_.seq}, options),
              at::empty({shape_.batch * shape_.seq}, options)};
    const auto seq = static_cast<size_t>(shape_.seq);
    for (int64_t row = 0; row < shape_.batch; ++row) {
      const int64_t first = sample_index(shape_, step, row, samples_) * shape_.seq;
      const int64_t at = row * shape_.seq;
      context_.tokens->read(first, {out.inputs.mutable_data_ptr<int64_t>() + at, seq});
      context_.tokens->read(first + 1, {out.targets.mutable_data_ptr<int64_t>() + at, seq});
    }
    return {out.inputs.to(context_.device, /*non_blocking=*/true),
            out.targets.to(context_.device, /*non_blocking=*/true)};
  }

  // Every rank has its own slot, so that the error message can name the rank with a loss that is
  // not finite. The slots after them count ranks: those that were asked to stop, so that all ranks
  // end after the same step, although a signal reaches them in different steps; and those that have
  // written their part of an asynchronous checkpoint, or failed to.
  at::Tensor& losses() {
    if (!losses_.defined()) {
      losses_ =
          at::zeros({shape_.ranks + kNews}, at::TensorOptions(at::kDouble).device(context_.device));
    }
    return losses_;
  }

  at::Tensor slot(int64_t index) { return losses().narrow(0, index, 1); }

  void share_loss() {
    RunCheckpoints::Progress saved;
    if (context_.checkpoints != nullptr) {
      saved = context_.checkpoints->progress();
    }
    const bool stop = context_.stop != nullptr && context_.stop->load();
    const double news[kNews] = {stop ? 1.0 : 0.0, saved.written, saved.failed};
    for (int64_t i = 0; i < kNews; ++i) {
      if (news[i] > 0) {
        slot(shape_.ranks + i).fill_(news[i]);
      }
    }
    if (!context_.world->emulated() && shape_.ranks > 1) {
      shared_ =
          context_.world->world().all_reduce(losses(), dist::ReduceOp::kSum, {kNoUnit, "loss", 0});
    }
  }

  // fp64: what the step computed besides the parameters. The scaling before it is updated.
  at::Tensor collect(const at::Tensor& norm) {
    if (shared_ != nullptr) {
      context_.world->world().wait(shared_);
      shared_.reset();
    }
    std::vector<at::Tensor> values{losses(), norm.to(at::kDouble).reshape({1})};
    if (scaler_) {
      values.push_back(scaler_->state().to(at::kDouble));
    }
    return at::cat(values);
  }

  // Reads them in one copy to the host: the only time in a step at which the host waits for the
  // device.
  StepReport read(int64_t step, const at::Tensor& numbers_of_step) {
    at::Tensor on_host = numbers_of_step;
    if (!context_.device.is_cpu()) {
      const auto pinned = at::TensorOptions(at::kDouble).pinned_memory(true);
      on_host = at::empty(on_host.sizes(), pinned).copy_(on_host, /*non_blocking=*/true);
      context_.world->world().wait_for_device();
    }
    const auto* numbers = on_host.const_data_ptr<double>();
    const double* after_losses = numbers + shape_.ranks;
    StepReport report;
    report.step = step;
    report.loss = mean_loss(step, numbers);
    stopping_ = after_losses[0] > 0;
    saved_ = {after_losses[1], after_losses[2]};
    report.grad_norm = after_losses[kNews];
    if (scaler_) {
      report.loss_scale = after_losses[kNews + 1];
      report.skipped = after_losses[kNews + 2] != 0;
    }
    return report;
  }

  double mean_loss(int64_t step, const double* losses) const {
    double sum = 0;
    for (int64_t rank = 0; rank < shape_.ranks; ++rank) {
      if (!std::isfinite(losses[rank])) {
        throw RuntimeFault(
            fmt::format("step {}: the loss of rank {} is {}; try a lower --lr or --clip", step,
                        rank, losses[rank]));
      }
      sum += losses[rank];
    }
    return context_.world->emulated() ? losses[shape_.rank]
                                      : sum / static_cast<double>(shape_.ranks);
  }

  const TrainContext& context_;
  const TrainOptions& options_;
  c10::DeviceAllocator* allocator_ = allocator_of(context_.device);
  BatchShape shape_;
  std::shared_ptr<Optimizer> optimizer_;  // the model has it too, if it steps in backward
  std::optional<GradScaler> scaler_;
  int64_t samples_;
  int64_t first_step_, steps_;
  int64_t microbatches_;        // of the steps from the first one on
  std::optional<Epoch> epoch_;  // one_epoch, with the join
  std::optional<fsdp::Join> join_;
  std::optional<Batch> next_;          // copied to the device one microbatch ahead
  static constexpr int64_t kNews = 3;  // counts of ranks after the losses
  at::Tensor losses_;                  // fp64 [ranks + kNews]: losses of the current step, counts
  bool stopping_ = false;
  RunCheckpoints::Progress saved_;  // of all ranks, as of the last step
  dist::CompletionPtr shared_;
};

}  // namespace

int64_t steps_of(const TrainContext& context, const TrainOptions& options) {
  if (!options.one_epoch) {
    return options.steps;
  }
  if (context.world->emulated()) {
    throw InputError("",
                     "one epoch: an emulated world has one rank, whose data cannot run out "
                     "before the others'");
  }
  const BatchShape shape = shape_from(context, options);
  const Epoch epoch(shape, context.tokens->samples(shape.seq));
  if (epoch.batches_of(0) < shape.ranks) {
    throw InputError(context.tokens->path().string(),
                     fmt::format("one epoch: {} batches of {} samples are left for {} ranks; "
                                 "expected one for each at least",
                                 epoch.batches_of(0), shape.batch, shape.ranks));
  }
  const int64_t microbatches = epoch.microbatches();
  const int64_t before = context.checkpoints == nullptr ? 0 : context.checkpoints->start().step;
  const int64_t per_step = options.step.accumulate;
  return std::min(options.steps, before + (microbatches + per_step - 1) / per_step);
}

int64_t train(const TrainContext& context,
              const TrainOptions& options,
              const std::function<void(const StepReport&)>& on_step) {
  Loop loop(context, options);
  for (int64_t step = loop.first_step(); step < loop.steps(); ++step) {
    if (context.recorder != nullptr) {
      context.recorder->step_begin(step);
    }
    const StepReport report = loop.run(step);
    if (context.recorder != nullptr) {
      context.recorder->step_end();
    }
    on_step(report);
    loop.save_if_due(step + 1);
    if (loop.stopping()) {
      return step + 1;
    }
  }
  return loop.steps();
}

}  // namespace shardlens::train
