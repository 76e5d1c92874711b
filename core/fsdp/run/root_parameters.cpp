// The parameters of a Root: this rank's slices, and unsharded parameters.
#include <numeric>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "core/base/error.h"
#include "core/dist/world.h"
#include "core/fsdp/run/root.h"

namespace shardlens::fsdp {

std::vector<ParameterSlice> Root::slices() const {
  require_not_summoned();
  std::vector<ParameterSlice> slices;
  const int64_t shard_rank = plan_.groups[plan::kShardGroup].position(options_.world->rank());
  for (const auto& state : states_) {
    FlatParamHandle* handle = state->handle();
    if (handle != nullptr) {
      handle->adopt_user_values();
    }
    for (size_t slot = 0; handle != nullptr && slot < handle->slots().size(); ++slot) {
      const plan::ShardLayout::Slice slice = handle->layout().slice(shard_rank, slot);
      if (slice.numel > 0) {
        slices.push_back(
            {plan_.units[state->unit()].parameters[slot], slice.param_offset, handle->slice(slot)});
      }
    }
  }
  return slices;
}

dist::Communicator& Root::shard_group() const {
  return options_.world->of(plan_.groups[plan::kShardGroup]);
}

void Root::materialize() {
  for (const auto& state : states_) {
    if (state->handle() != nullptr) {
      state->handle()->materialize();
    }
  }
}

void Root::require_materialized() {
  if (materialized_) {
    return;
  }
  std::string missing;
  for (const auto& state : states_) {
    if (state->handle() != nullptr && !state->handle()->is_materialized()) {
      for (const FlatParamHandle::Slot& slot : state->handle()->slots()) {
        missing += (missing.empty() ? "" : ", ") + slot.fqn;
      }
    }
  }
  if (!missing.empty()) {
    throw UsageError(
        prefix() +
        "FSDP parameters should be materialized before they are used, but the following "
        "have no storage yet: " +
        missing + "; call materialize() and fill slices()");
  }
  materialized_ = true;
}

void Root::require_frozen_as_sharded() const {
  for (const auto& state : states_) {
    const std::string fqn = state->handle() == nullptr ? "" : state->handle()->refrozen();
    if (!fqn.empty()) {
      throw UsageError(prefix() + "parameter '" + fqn +
                       "' was frozen or unfrozen after it was sharded; freeze or unfreeze "
                       "parameters before sharding");
    }
  }
}

void Root::require_no_stray_use() const {
  for (const auto& state : states_) {
    const std::string stray = state->handle() == nullptr ? "" : state->handle()->stray_use();
    if (!stray.empty()) {
      throw UsageError(prefix() + "parameter '" + stray +
                       "' was used while it was sharded: the forward of its unit '" +
                       state->handle()->unit() +
                       "' did not run through its hooks; call the unit's module, not a part of it");
    }
  }
}

// [Note: Hidden parameters] A backward, or a forward without gradients, may leave units unsharded.
// Their parameters become slices anyway, so that optimizers, loads and other writes reach the
// shard; the next forward uses the unsharded ones again, unless the shard has changed. In FSDP1 the
// schedule does this.
void Root::hide_unsharded() {
  for (const auto& state : states_) {
    if (state->handle() != nullptr && !full_before_[state->unit()]) {
      state->handle()->use_shard();
    }
  }
}

// [Note: Kept and stepped] A unit may stay unsharded after an evaluation (reshard_after_forward
// false) or a backward of FSDP1 without sync. If an optimizer steps then, the next forward must
// gather it again. torch::optim::SGD writes through data(), which no version counter shows.
// optimizer_done() does; in a program that does not call it, a kept unit with gradients counts as
// stepped. PyTorch computes with the old values there. With reshard_after_backward false the
// program itself says which backward is the last before the optimizer.
void Root::note_kept() {
  for (const auto& state : states_) {
    FlatParamHandle* handle = state->handle();
    if (!announces_steps_ && handle != nullptr && handle->has_grads()) {
      handle->values_written();
    }
  }
}

void Root::adopt_user_grads() {
  for (const auto& state : states_) {
    if (FlatParamHandle* handle = state->handle(); handle != nullptr) {
      executor_->forget_unreduced(state->unit(), handle->adopt_user_grads());
    }
  }
}

void Root::zero_grad() {
  settle();
  for (const auto& state : states_) {
    if (state->handle() != nullptr) {
      std::vector<size_t> all(state->handle()->slots().size());
      std::iota(all.begin(), all.end(), size_t{0});
      executor_->forget_unreduced(state->unit(), all);
      state->handle()->zero_grad();
    }
  }
}

void Root::drop_stale(UnitId unit) {
  if (!states_[unit]->handle()->is_stale()) {
    return;
  }
  if (schedule_.state(unit) == schedule::UnitState::kUnsharding) {
    raise({Hook::kWaitUnshard, unit});  // gathered ahead, and not used
  }
  raise({Hook::kReshard, unit});
}

at::Tensor Root::full_parameter(uint32_t parameter) {
  require_not_summoned();
  require_materialized();
  const at::NoGradGuard no_grad;
  for (const plan::Unit& unit : plan_.units) {
    for (size_t slot = 0; slot < unit.parameters.size(); ++slot) {
      if (unit.parameters[slot] != parameter) {
        continue;
      }
      const auto id = static_cast<UnitId>(&unit - plan_.units.data());
      FlatParamHandle& handle = *states_[id]->handle();
      handle.adopt_user_values();
      // A caller that goes through the parameters in order gathers each unit once.
      if (gathered_unit_ != id || slot <= gathered_slot_) {
        const at::Tensor own = handle.shard().detach().to(handle.device());
        if (plan_.shards() == 1) {
          gathered_ = own;
        } else {
          dist::Communicator& shard = shard_group();
          gathered_ = at::empty({own.numel() * shard.size()}, own.options());
          shard.wait(shard.all_gather(gathered_, own, {id, unit.fqn}));
        }
        gathered_unit_ = id;
      }
      gathered_slot_ = slot;
      return handle.parameter_of(gathered_.detach(), slot).clone();
    }
  }
  throw UsageError("full_parameter: the plan has no parameter with index " +
                   std::to_string(parameter));
}

}  // namespace shardlens::fsdp
