#include "core/fsdp/run/microbatch_shadow.h"

#include <utility>

#include "core/base/error.h"

namespace shardlens::fsdp {

void MicrobatchShadow::remember(const HookEvent& event) {
  if (!remembers_ || replaying_ || event.hook == Hook::kOptimizerDone) {
    return;
  }
  if (event.hook == Hook::kAbort) {
    current_.clear();
    return;
  }
  const bool begins = event.hook == Hook::kRootPreForward && event.grad_mode;
  if (current_.empty() && !begins) {
    return;  // an evaluation, or what the program does between steps
  }
  Remembered& now = current_.emplace_back(Remembered{event, {}});
  if (FlatParamHandle* handle = units_.handle(event.unit);
      handle != nullptr && event.hook == Hook::kGradsReady) {
    for (const at::Tensor& gradient : handle->unsharded_gradients().waiting()) {
      now.gradients.push_back(gradient.defined());
    }
  }
  if (event.hook == Hook::kBackwardEnd) {
    // With a forward prefetch, views of FSDP1's first iteration are made in another order than
    // later, so its backward has another order too.
    const plan::Plan& plan = units_.plan().plan;
    const bool differs =
        plan.dialect == plan::Dialect::kFsdp1 && plan.forward_prefetch > 0 && first_;
    first_ = false;
    shadow_ = std::exchange(current_, {});
    if (differs) {
      shadow_.clear();
    }
  }
}

void MicrobatchShadow::require_remembered() const {
  if (shadow_.empty()) {
    throw UsageError(units_.prefix() +
                     "shadow_microbatch: this rank has not run a forward and backward since "
                     "remember_microbatches() (with fsdp1 and forward_prefetch: two), so it does "
                     "not know the collectives of the others");
  }
}

void MicrobatchShadow::replay(const std::function<void(const HookEvent&)>& raise) {
  replaying_ = true;
  try {
    for (const Remembered& each : shadow_) {
      if (FlatParamHandle* handle = units_.handle(each.event.unit);
          handle != nullptr && !each.gradients.empty()) {
        handle->add_zero_gradients(each.gradients);
      }
      raise(each.event);
    }
  } catch (...) {
    replaying_ = false;
    throw;
  }
  replaying_ = false;
}

}  // namespace shardlens::fsdp
