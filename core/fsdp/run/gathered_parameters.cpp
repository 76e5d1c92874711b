#include "core/fsdp/run/gathered_parameters.h"

#include <algorithm>
#include <exception>
#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "core/base/error.h"
#include "core/dist/world.h"

namespace shardlens::fsdp {
namespace {

// All ranks' `own`, one after the other, on the device of the collectives.
at::Tensor gathered(const at::Tensor& own,
                    c10::Device device,
                    dist::Communicator& shard,
                    const dist::Purpose& purpose) {
  const at::Tensor input = own.detach().to(device);
  const at::Tensor all = at::empty({input.numel() * shard.size()}, input.options());
  shard.wait(shard.all_gather(all, input, purpose));
  return all;
}

}  // namespace

at::Tensor GatheredParameters::parameter(uint32_t parameter) {
  const at::NoGradGuard no_grad;
  const plan::ResolvedPlan& plan = units_.plan();
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    const std::vector<uint32_t>& parameters = plan.units[id].parameters;
    const auto found = std::ranges::find(parameters, parameter);
    if (found == parameters.end()) {
      continue;
    }
    const auto slot = static_cast<size_t>(found - parameters.begin());
    FlatParamHandle& handle = *units_.handle(id);
    handle.adopt_user_values();
    if (unit_ != id || slot <= slot_) {
      gathered_ = plan.shards() == 1 ? handle.shard().values().detach().to(handle.device())
                                     : gathered(handle.shard().values(), handle.device(),
                                                units_.shard_group(), {id, plan.units[id].fqn});
      unit_ = id;
    }
    slot_ = slot;
    return handle.shard().parameter_of(gathered_.detach(), slot).clone();
  }
  throw UsageError("full_parameter: the plan has no parameter with index " +
                   std::to_string(parameter));
}

void GatheredParameters::forget() {
  gathered_ = at::Tensor();
  unit_ = kNoUnit;
}

void GatheredParameters::require_hidden() const {
  if (shown_) {
    throw UsageError(units_.prefix() +
                     "the parameters are whole, in a scope FullParameters; end it before the model "
                     "runs, or is used in another way");
  }
}

void GatheredParameters::require_showable(const std::vector<UnitId>& units,
                                          const SummonOptions& options) const {
  for (const UnitId unit : units) {
    const FlatParamHandle* handle = units_.handle(unit);
    if (handle == nullptr) {
      continue;
    }
    if (options.offload_to_cpu && units_.plan().shards() == 1) {
      throw UsageError(units_.prefix() + "unit '" + handle->unit() +
                       "': offload_to_cpu is not supported for parameters that are not sharded");
    }
    const std::vector<bool> unreduced = units_.executor().unreduced(unit);
    if (options.with_grads && std::ranges::count(unreduced, true) > 0) {
      throw UsageError(units_.prefix() + "unit '" + handle->unit() +
                       "' has gradients that are not reduced yet; run a backward with sync first");
    }
  }
}

void GatheredParameters::show(const std::vector<UnitId>& units, const SummonOptions& options) {
  const at::NoGradGuard no_grad;
  const bool shows = !options.rank0_only || units_.world().rank() == 0;
  const bool whole = units_.plan().shards() == 1;
  shown_ = true;
  try {
    for (const UnitId unit : units) {
      FlatParamHandle* handle = units_.handle(unit);
      if (handle == nullptr) {
        continue;
      }
      const dist::Purpose purpose{unit, "the full parameters"};
      const at::Tensor grad = options.with_grads && handle->gradient().exists()
                                  ? handle->shard().values().grad()
                                  : at::Tensor();
      const at::Tensor parameters = whole ? handle->shard().values().detach().to(handle->device())
                                          : gathered(handle->shard().values(), handle->device(),
                                                     units_.shard_group(), purpose);
      const at::Tensor gradients =
          !grad.defined() || whole
              ? grad
              : gathered(grad, handle->device(), units_.shard_group(), purpose);
      if (shows) {
        handle->summon(parameters, gradients, options.offload_to_cpu);
      }
    }
  } catch (...) {
    hide(units, /*writeback=*/false);
    throw;
  }
}

void GatheredParameters::hide(const std::vector<UnitId>& units, bool writeback) {
  shown_ = false;
  std::exception_ptr failure;
  for (const UnitId unit : units) {
    FlatParamHandle* handle = units_.handle(unit);
    try {
      if (handle != nullptr) {
        handle->end_summon(writeback);
      }
    } catch (const UsageError&) {
      failure = failure == nullptr ? std::current_exception() : failure;
    }
  }
  if (failure != nullptr) {
    std::rethrow_exception(failure);
  }
}

}  // namespace shardlens::fsdp
