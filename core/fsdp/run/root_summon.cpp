#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "core/base/error.h"
#include "core/dist/world.h"
#include "core/fsdp/run/root.h"

namespace shardlens::fsdp {
namespace {

// All ranks' `own`, one after the other, on the device of the collectives.
at::Tensor gathered(const at::Tensor& own,
                    c10::Device device,
                    dist::Communicator& shard,
                    UnitId unit) {
  const at::Tensor input = own.detach().to(device);
  const at::Tensor all = at::empty({input.numel() * shard.size()}, input.options());
  shard.wait(shard.all_gather(all, input, {unit, "the full parameters"}));
  return all;
}

}  // namespace

void Root::summon(const std::vector<UnitId>& units, const SummonOptions& options) {
  if (summoned_) {
    throw UsageError(prefix() +
                     "cannot unshard parameters: another scope of full parameters is open");
  }
  settle();
  if (forward_root_ != kNoUnit || in_backward_) {
    throw UsageError(prefix() + "cannot unshard parameters during a forward or backward");
  }
  require_materialized();
  adopt_user_grads();
  for (const UnitId unit : units) {
    require_summonable(unit, options);
  }
  summoned_ = true;
  try {
    gather_full(units, options);
  } catch (...) {
    end_summon(units, /*writeback=*/false);
    throw;
  }
}

void Root::gather_full(const std::vector<UnitId>& units, const SummonOptions& options) {
  const at::NoGradGuard no_grad;
  const bool shows = !options.rank0_only || options_.world->rank() == 0;
  for (const UnitId unit : units) {
    FlatParamHandle* handle = states_[unit]->handle();
    if (handle == nullptr) {
      continue;
    }
    handle->adopt_user_values();
    if (handle->is_full()) {
      raise({Hook::kReshard, unit});
    }
    const bool whole = plan_.shards() == 1;
    const at::Tensor grad =
        options.with_grads && handle->has_grads() ? handle->shard().grad() : at::Tensor();
    const at::Tensor parameters =
        whole ? handle->shard().detach().to(handle->device())
              : gathered(handle->shard(), handle->device(), shard_group(), unit);
    const at::Tensor gradients =
        !grad.defined() || whole ? grad : gathered(grad, handle->device(), shard_group(), unit);
    if (shows) {
      handle->summon(parameters, gradients, options.offload_to_cpu);
    }
  }
}

void Root::require_summonable(UnitId unit, const SummonOptions& options) const {
  const FlatParamHandle* handle = states_[unit]->handle();
  if (handle == nullptr) {
    return;
  }
  if (options.offload_to_cpu && plan_.shards() == 1) {
    throw UsageError(prefix() + "unit '" + handle->unit() +
                     "': offload_to_cpu is not supported for parameters that are not sharded");
  }
  const std::vector<bool> unreduced = executor_->unreduced(unit);
  if (options.with_grads && std::ranges::count(unreduced, true) > 0) {
    throw UsageError(prefix() + "unit '" + handle->unit() +
                     "' has gradients that are not reduced yet; run a backward with sync first");
  }
}

void Root::end_summon(const std::vector<UnitId>& units, bool writeback) {
  summoned_ = false;
  std::exception_ptr failure;
  for (const UnitId unit : units) {
    FlatParamHandle* handle = states_[unit]->handle();
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
