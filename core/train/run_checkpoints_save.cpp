// Saving a run: RunCheckpoints::save() and what belongs to it.
#include <utility>

#include <fmt/format.h>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "core/base/error.h"
#include "core/checkpoint/checkpoint_reader.h"
#include "core/checkpoint/save_directory.h"
#include "core/dist/world.h"
#include "core/fsdp/fully_shard.h"
#include "core/train/background_save.h"
#include "core/train/grad_scaler.h"
#include "core/train/in_shard.h"
#include "core/train/optimizer.h"
#include "core/train/run_checkpoints.h"

namespace shardlens::train {
namespace {

checkpoint::Origin origin_of(const plan::ResolvedPlan& plan, const plan::StepSettings& step) {
  return {plan.world_size,
          plan.replicate,
          plan.shard,
          plan.plan.dialect == plan::Dialect::kFsdp1 ? "fsdp1" : "fsdp2",
          plan.plan.layout == plan::Layout::kFlat ? "flat" : "per_parameter",
          std::string(plan::name_of(step.optimizer))};
}

}  // namespace

bool RunCheckpoints::is_due(int64_t steps, bool last) const {
  return !options_.save.empty() && (last || (options_.every > 0 && steps % options_.every == 0));
}

RunCheckpoints::Progress RunCheckpoints::progress() const {
  using State = BackgroundSave::State;
  const State state = background_ == nullptr ? State::kDone : background_->state();
  return {state == State::kWritten ? 1.0 : 0.0, state == State::kFailed ? 1.0 : 0.0};
}

void RunCheckpoints::see(const Progress& sum) {
  using State = BackgroundSave::State;
  if (sum.failed > 0) {
    finish();
  }
  if (background_ != nullptr && background_->state() == State::kDone) {
    background_.reset();
  }
  if (background_ == nullptr || sum.written < static_cast<double>(world_.size())) {
    return;
  }
  if (world_.rank() == 0) {
    background_->commit([this, position = background_->position()] { commit(position); });
  } else {
    background_.reset();
  }
}

// All ranks call this, although only some may have a save under way: rank 0 completes a checkpoint
// when the others have finished with it.
void RunCheckpoints::finish() {
  std::string failure;
  if (background_ != nullptr) {
    background_->wait();
    failure = background_->failure();
  }
  agree(failure);
  if (world_.rank() == 0 && background_ != nullptr &&
      background_->state() == BackgroundSave::State::kWritten) {
    background_->commit([this] { commit(background_->position()); });
    background_->wait();
    failure = background_->failure();
  }
  agree(failure);
  background_.reset();
}

void RunCheckpoints::commit(const checkpoint::Position& position) const {
  checkpoint::commit_save(options_.save, position, origin_of(model_.plan(), step_), options_.extra);
  checkpoint::remove_old(options_.save, options_.keep);
}

// Throws on all ranks if any has a failure.
void RunCheckpoints::agree(const std::string& failure) const {
  if (world_.size() > 1) {
    at::Tensor failed = at::zeros({world_.size()}, at::TensorOptions(at::kFloat).device(device_));
    failed.narrow(0, world_.rank(), 1).fill_(failure.empty() ? 0 : 1);
    dist::Communicator& all = world_.world();
    all.wait(all.all_reduce(failed, dist::ReduceOp::kMax, {kNoUnit, "checkpoint", 0}));
    const at::Tensor host = failed.cpu();
    for (int rank = 0; failure.empty() && rank < world_.size(); ++rank) {
      if (host.const_data_ptr<float>()[rank] != 0) {
        throw RuntimeFault(fmt::format("a checkpoint was not saved: rank {} failed", rank));
      }
    }
  }
  if (!failure.empty()) {
    const auto saved = checkpoint::saved_steps(options_.save);
    throw RuntimeFault(fmt::format("a checkpoint was not saved: {}; {}", failure,
                                   saved.empty() ? std::string("there is no earlier one")
                                                 : "the latest is " + saved.back().path.string()));
  }
}

void RunCheckpoints::save(const Optimizer& optimizer,
                          const GradScaler* scaler,
                          int64_t steps,
                          int64_t samples,
                          bool last) {
  const c10::NoGradGuard no_grad;
  if (options_.on_saving) {
    options_.on_saving(true);
  }
  if (options_.asynchronous) {
    finish();
  }
  checkpoint::Position position{steps, samples, step_.seq.value_or(1), {}};
  if (scaler != nullptr) {
    position.scaler = {scaler->scale(), scaler->good_steps()};
  }
  const bool asynchronous = options_.asynchronous && !last;
  HostParts host(asynchronous ? &staging_ : nullptr);
  collect(optimizer, host);
  background_ = std::make_unique<BackgroundSave>(std::move(host), std::move(position),
                                                 options_.save, world_.rank());
  if (!asynchronous) {
    finish();
  }
  if (options_.on_saving) {
    options_.on_saving(false);
  }
}

void RunCheckpoints::collect(const Optimizer& optimizer, HostParts& host) const {
  const plan::ModuleTree& tree = model_.plan().tree;
  for (const fsdp::ParameterSlice& slice : model_.slices()) {
    if (!writes(slice.parameter)) {
      continue;
    }
    const std::string name = stored_name(slice.parameter);
    const std::vector<int64_t>& shape = tree.parameters[slice.parameter].shape;
    host.add(name, shape, slice.offset, slice.values);
    const auto place = place_in_shard(slice.values, optimizer.states());
    if (!place || !optimizer.states()[place->shard].first.defined()) {
      continue;
    }
    const ShardState& state = optimizer.states()[place->shard];
    for (size_t i = 0; i < optimizer.moments().size(); ++i) {
      host.add(checkpoint::state_name(name, optimizer.moments()[i]), shape, slice.offset,
               state.moment(i).view({-1}).narrow(0, place->offset, slice.values.numel()));
    }
    if (state.step.defined() && slice.offset == 0) {
      host.add(checkpoint::state_name(name, "step"), {}, 0, state.step);
    }
  }
  const at::Tensor generator = at::globalContext().defaultGenerator(device_).get_state();
  host.add(checkpoint::name_on_rank(world_.rank(), generator_name()), {generator.numel()}, 0,
           generator);
}

}  // namespace shardlens::train
