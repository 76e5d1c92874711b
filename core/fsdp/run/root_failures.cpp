// What a Root does after a forward or a backward that threw.
#include <algorithm>

#include <torch/csrc/autograd/graph_task.h>

#include "core/base/error.h"
#include "core/fsdp/run/root.h"

namespace shardlens::fsdp {

void Root::require_not_summoned() const {
  if (summoned_) {
    throw UsageError(prefix() +
                     "the parameters are whole, in a scope FullParameters; end it before the model "
                     "runs, or is used in another way");
  }
}

void Root::settle() {
  require_not_summoned();
  if (!in_backward_ || faulted_ || torch::autograd::get_current_graph_task_id() != -1) {
    return;
  }
  // The user may have reset the gradients since. Those of the failed backward that were not
  // published yet would then count in the next one.
  executor_->enter();
  executor_->drain(/*keep=*/false);
  for (const auto& state : states_) {
    FlatParamHandle* handle = state->handle();
    if (handle != nullptr && std::ranges::none_of(handle->slots(), [](const auto& slot) {
          return slot.parameter.mutable_grad().defined();
        })) {
      handle->zero_grad();
    }
  }
  abort();
}

void Root::abort() {
  const bool keep = !in_backward_ && !faulted_;
  in_backward_ = faulted_ = false;
  forward_root_ = kNoUnit;
  executor_->enter();
  executor_->drain(keep);
  HookEvent event{Hook::kAbort, 0};
  event.grads = keep ? Grads::kSome : Grads::kNone;
  if (options_.recorder != nullptr) {
    options_.recorder->hook(event);
  }
  schedule::ActionList actions;
  if (schedule_.on(event, actions).ok()) {
    for (const schedule::Action& action : actions) {
      if (ledger_ != nullptr) {
        static_cast<void>(ledger_->consume(action).ok());  // the ledger needs every action
      }
      try {
        executor_->execute(action, false);
      } catch (const std::exception&) {  // abort may follow a failed collective
      }
    }
  }
  reset_progress();
  for (const auto& state : states_) {
    if (FlatParamHandle* handle = state->handle(); handle != nullptr) {
      handle->drop_views();
      if (keep) {
        // See [Note: Exceptions]: a reset after the exception drops these gradients.
        handle->publish_zeros(executor_->unreduced(state->unit()));
      }
      handle->publish_grads();
    }
  }
}

}  // namespace shardlens::fsdp
