// A Root on a rank that has no data left: it issues the collectives of the other ranks.
#include <utility>

#include "core/base/error.h"
#include "core/fsdp/run/root.h"
#include "core/fsdp/unit/reduction.h"

namespace shardlens::fsdp {

// See [Note: Shadowed microbatches].
void Root::remember(const HookEvent& event) {
  if (!remembers_ || shadowing_ || event.hook == Hook::kOptimizerDone) {
    return;
  }
  if (event.hook == Hook::kAbort) {
    remembered_.clear();
    return;
  }
  const bool begins = event.hook == Hook::kRootPreForward && event.grad_mode;
  if (remembered_.empty() && !begins) {
    return;  // an evaluation, or what the program does between steps
  }
  Remembered& now = remembered_.emplace_back(Remembered{event, {}});
  if (FlatParamHandle* handle = states_[event.unit]->handle();
      handle != nullptr && event.hook == Hook::kGradsReady) {
    for (const at::Tensor& gradient : handle->unsharded_gradients().waiting()) {
      now.gradients.push_back(gradient.defined());
    }
  }
  if (event.hook == Hook::kBackwardEnd) {
    // With a forward prefetch, views of FSDP1's first iteration are made in another order than
    // later, so its backward has another order too.
    const bool differs =
        plan_.plan.dialect == plan::Dialect::kFsdp1 && plan_.plan.forward_prefetch > 0 && first_;
    first_ = false;
    shadow_ = std::exchange(remembered_, {});
    if (differs) {
      shadow_.clear();
    }
  }
}

void Root::shadow_microbatch() {
  settle();
  require_not_summoned();
  if (shadow_.empty()) {
    throw UsageError(prefix() +
                     "shadow_microbatch: this rank has not run a forward and backward since "
                     "remember_microbatches() (with fsdp1 and forward_prefetch: two), so it does "
                     "not know the collectives of the others");
  }
  adopt_user_grads();
  for (const auto& state : states_) {
    if (FlatParamHandle* handle = state->handle(); handle != nullptr) {
      handle->adopt_user_values();
      drop_stale(state->unit());
    }
  }
  begin_stepped_norm();
  require_optimizer();
  shadowing_ = true;
  try {
    for (const Remembered& each : shadow_) {
      if (FlatParamHandle* handle = states_[each.event.unit]->handle();
          handle != nullptr && !each.gradients.empty()) {
        handle->add_zero_gradients(each.gradients);
      }
      raise(each.event);
    }
    finish_backward();
  } catch (...) {
    shadowing_ = false;
    throw;
  }
  shadowing_ = false;
}

void Root::divide_gradients_by(int64_t ranks) {
  settle();
  if (ranks < 1 || ranks > plan_.world_size) {
    throw UsageError(prefix() + "divide_gradients_by: " + std::to_string(ranks) +
                     " ranks; expected 1 to " + std::to_string(plan_.world_size));
  }
  const double share = static_cast<double>(ranks) / static_cast<double>(plan_.world_size);
  if (share == gradient_share_) {
    return;
  }
  gradient_share_ = share;
  for (UnitId id = 0; id < states_.size(); ++id) {
    if (states_[id]->handle() != nullptr) {
      states_[id]->handle()->set_reduction(reduction_of(plan_, id, share));
    }
  }
}

}  // namespace shardlens::fsdp
