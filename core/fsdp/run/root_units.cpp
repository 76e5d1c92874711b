#include "core/fsdp/run/root_units.h"

#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/dist/world.h"
#include "core/fsdp/unit/reduction.h"
#include "core/mesh/mesh.h"

namespace shardlens::fsdp {
namespace {

std::vector<FlatParamHandle*> handles_of(const std::vector<std::shared_ptr<FsdpState>>& states) {
  std::vector<FlatParamHandle*> handles;
  for (const auto& state : states) {
    handles.push_back(state->handle());
  }
  return handles;
}

}  // namespace

RootUnits::RootUnits(plan::ResolvedPlan plan,
                     const Options& options,
                     std::vector<std::shared_ptr<FsdpState>> states)
    : plan_(std::move(plan)),
      options_(options),
      states_(std::move(states)),
      executor_(
          options.make_executor
              ? options.make_executor(handles_of(states_))
              : std::make_unique<Executor>(handles_of(states_), *options.world, options.recorder)) {
  executor_->use_groups(plan_.groups);
  if (options_.collectives != nullptr) {
    executor_->set_collectives(options_.collectives);
  }
  for (UnitId unit = 0; unit < states_.size(); ++unit) {
    FlatParamHandle* handle = states_[unit]->handle();
    if (handle == nullptr) {
      continue;
    }
    parameters_.push_back({unit, *handle});
    if (!handle->is_mixed()) {
      shards_.push_back(handle->shard().values());
      continue;
    }
    for (size_t i = 0; i < handle->slots().size(); ++i) {
      if (!handle->is_frozen(i)) {
        shards_.push_back(handle->slots()[i].parameter);
      }
    }
  }
}

std::string RootUnits::prefix() const {
  return "[rank " + std::to_string(options_.world->rank()) + "] ";
}

dist::Communicator& RootUnits::shard_group() const {
  return options_.world->of(plan_.groups[plan::kShardGroup]);
}

std::vector<ParameterSlice> RootUnits::slices() const {
  std::vector<ParameterSlice> slices;
  const int64_t shard_rank = plan_.groups[plan::kShardGroup].position(options_.world->rank());
  for (const auto& [unit, handle] : parameters_) {
    handle.adopt_user_values();
    for (size_t slot = 0; slot < handle.slots().size(); ++slot) {
      const plan::ShardLayout::Slice slice = handle.layout().slice(shard_rank, slot);
      if (slice.numel > 0) {
        slices.push_back(
            {plan_.units[unit].parameters[slot], slice.param_offset, handle.shard().view(slot)});
      }
    }
  }
  return slices;
}

void RootUnits::materialize() {
  for (const auto& [unit, handle] : parameters_) {
    handle.shard().materialize();
  }
}

void RootUnits::zero_grad() {
  for (const auto& [unit, handle] : parameters_) {
    std::vector<size_t> all(handle.slots().size());
    std::iota(all.begin(), all.end(), size_t{0});
    executor_->forget_unreduced(unit, all);
    handle.gradient().zero();
  }
}

void RootUnits::values_written() {
  for (const auto& [unit, handle] : parameters_) {
    handle.storage().values_written();
  }
}

int64_t RootUnits::unsharded_bytes() const {
  int64_t bytes = 0;
  for (const auto& [unit, handle] : parameters_) {
    bytes += handle.storage().bytes();
  }
  return bytes;
}

void RootUnits::set_gradient_divide_factor(UnitId unit, double factor) {
  if (plan_.plan.dialect == plan::Dialect::kFsdp1) {
    throw UsageError(prefix() + "unit '" + plan_.units[unit].fqn +
                     "': fsdp1 always divides gradients by the number of ranks");
  }
  plan_.units[unit].gradient_divide_factor = factor;
  if (handle(unit) != nullptr) {
    handle(unit)->set_reduction(reduction_of(plan_, unit, gradient_share_));
  }
}

void RootUnits::divide_gradients_by(int64_t ranks) {
  if (ranks < 1 || ranks > plan_.world_size) {
    throw UsageError(prefix() + "divide_gradients_by: " + std::to_string(ranks) +
                     " ranks; expected 1 to " + std::to_string(plan_.world_size));
  }
  const double share = static_cast<double>(ranks) / static_cast<double>(plan_.world_size);
  if (share == gradient_share_) {
    return;
  }
  gradient_share_ = share;
  for (const auto& [unit, handle] : parameters_) {
    handle.set_reduction(reduction_of(plan_, unit, share));
  }
}

void RootUnits::adopt_user_grads() {
  for (const auto& [unit, handle] : parameters_) {
    executor_->forget_unreduced(unit, handle.gradient().adopt());
  }
}

void RootUnits::require_materialized() {
  if (materialized_) {
    return;
  }
  std::string missing;
  for (const auto& [unit, handle] : parameters_) {
    if (!handle.shard().is_materialized()) {
      for (const FlatParamHandle::Slot& slot : handle.slots()) {
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

void RootUnits::require_frozen_as_sharded() const {
  for (const auto& [unit, handle] : parameters_) {
    const std::string fqn = handle.refrozen();
    if (!fqn.empty()) {
      throw UsageError(prefix() + "parameter '" + fqn +
                       "' was frozen or unfrozen after it was sharded; freeze or unfreeze "
                       "parameters before sharding");
    }
  }
}

void RootUnits::require_no_stray_use() const {
  for (const auto& [unit, handle] : parameters_) {
    const std::string stray = handle.stray_use();
    if (!stray.empty()) {
      throw UsageError(prefix() + "parameter '" + stray +
                       "' was used while it was sharded: the forward of its unit '" +
                       handle.unit() +
                       "' did not run through its hooks; call the unit's module, not a part of it");
    }
  }
}

}  // namespace shardlens::fsdp
