// Saving a run: RunCheckpoints::save() and what belongs to it.
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "core/base/error.h"
#include "core/checkpoint/checkpoint_reader.h"
#include "core/checkpoint/save_directory.h"
#include "core/dist/world.h"
#include "core/files/directory_lock.h"
#include "core/files/output_folder.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/train/background_save.h"
#include "core/train/grad_scaler.h"
#include "core/train/in_shard.h"
#include "core/train/optimizer.h"
#include "core/train/run_checkpoints.h"

namespace shardlens::train {
namespace {

checkpoint::Origin origin_of(const plan::ResolvedPlan& plan, const plan::StepSettings& step) {
  return {plan.world_size,
          plan.replicas(),
          plan.shards(),
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
  agree_on_save(failure);
  if (world_.rank() == 0 && background_ != nullptr &&
      background_->state() == BackgroundSave::State::kWritten) {
    background_->commit([this] { commit(background_->position()); });
    background_->wait();
    failure = background_->failure();
  }
  agree_on_save(failure);
  background_.reset();
}

void RunCheckpoints::commit(const checkpoint::Position& position) {
  directory_->commit(position, origin_of(model_.plan(), step_), options_.extra);
  tell_left(directory_->remove_old(options_.keep));
}

// Each message once, although every save finds the same folders.
void RunCheckpoints::tell_left(const std::vector<std::string>& messages) {
  for (const std::string& message : messages) {
    if (told_.insert(message).second && options_.on_left) {
      options_.on_left(message);
    }
  }
}

// Rank 0 locks the directory, and each rank tries to write what the others read.
void RunCheckpoints::open_directory() {
  std::string failure;
  const auto attempt = [&](const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      failure = error.what();
    }
  };
  std::string id(random_identifier());
  if (world_.rank() == 0) {
    attempt([&] {
      directory_ = std::make_unique<checkpoint::SaveDirectory>(options_.save, id);
      lock_ = options_.lock != nullptr
                  ? options_.lock
                  : std::make_shared<const DirectoryLock>(checkpoint::save_place(options_.save));
      if (lock_->held()) {
        tell_left(directory_->remove_interrupted());
      }
      directory_->try_writing(0);
    });
  }
  id = shared(failure.empty() ? id : std::string(id.size(), '-'));
  if (world_.rank() > 0 && id.front() != '-') {
    attempt([&] {
      directory_ = std::make_unique<checkpoint::SaveDirectory>(options_.save, id);
      directory_->try_writing(world_.rank());
    });
  }
  agree(failure, "checkpoints cannot be saved");
  if (world_.rank() == 0) {
    directory_->end_trial();
  }
}

// Rank 0's identifier.
std::string RunCheckpoints::shared(const std::string& id) const {
  if (world_.size() == 1) {
    return id;
  }
  at::Tensor text = at::empty({static_cast<int64_t>(id.size())}, at::TensorOptions(at::kByte));
  std::memcpy(text.mutable_data_ptr(), id.data(), id.size());
  text = text.to(device_);
  dist::Communicator& all = world_.world();
  all.wait(all.broadcast(text, 0, {kNoUnit, "checkpoint", 0}));
  text = text.cpu();
  return {static_cast<const char*>(text.const_data_ptr()), id.size()};
}

// Throws on all ranks if any has a failure.
void RunCheckpoints::agree(const std::string& failure, const std::string& what) const {
  if (world_.size() > 1) {
    at::Tensor failed = at::zeros({world_.size()}, at::TensorOptions(at::kFloat).device(device_));
    failed.narrow(0, world_.rank(), 1).fill_(failure.empty() ? 0 : 1);
    dist::Communicator& all = world_.world();
    all.wait(all.all_reduce(failed, dist::ReduceOp::kMax, {kNoUnit, "checkpoint", 0}));
    const at::Tensor host = failed.cpu();
    for (int rank = 0; failure.empty() && rank < world_.size(); ++rank) {
      if (host.const_data_ptr<float>()[rank] != 0) {
        throw RuntimeFault(fmt::format("{}: rank {} failed", what, rank));
      }
    }
  }
  if (!failure.empty()) {
    throw RuntimeFault(fmt::format("{}: {}", what, failure));
  }
}

void RunCheckpoints::agree_on_save(const std::string& failure) const {
  try {
    agree(failure, "a checkpoint was not saved");
  } catch (const RuntimeFault& fault) {
    if (failure.empty()) {
      throw;
    }
    const auto saved = checkpoint::saved_steps(options_.save);
    throw RuntimeFault(fmt::format("{}; {}", fault.what(),
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
  background_ = std::make_unique<BackgroundSave>(std::move(host), std::move(position), *directory_,
                                                 world_.rank());
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
