// The backward of a Root, and what it does after a forward or a backward that threw.
#include <algorithm>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "core/fsdp/run/root.h"

namespace shardlens::fsdp {

// Autograd holds it as the final callback of a backward. If it is destroyed without having been
// called, the backward has thrown.
class Root::Backward {
 public:
  Backward(std::weak_ptr<Root> root, std::thread::id trainer)
      : root_(std::move(root)), trainer_(trainer) {}
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;
  ~Backward() {
    if (std::this_thread::get_id() != trainer_) {
      return;  // autograd's thread of a device: the thread that trains may have gone on; settle()
    }
    const auto root = root_.lock();
    if (root == nullptr || !root->in_backward_ || root->faulted_) {
      return;
    }
    try {
      root->abort();
    } catch (const std::exception&) {  // the original exception is being thrown already
    }
  }
  void end() {
    if (const auto root = root_.lock()) {
      root->backward_end();
    }
  }

 private:
  std::weak_ptr<Root> root_;
  std::thread::id trainer_;
};

void Root::pre_backward(UnitId unit, uint32_t invocation) {
  Progress& progress = progress_[unit];
  if (!in_backward_) {
    gathered_.require_hidden();
    in_backward_ = true;
    clip_.begin_backward();
    torch::autograd::Engine::get_default_engine().queue_callback(
        [backward = std::make_shared<Backward>(weak_from_this(), trainer_)] { backward->end(); });
    units_.require_no_stray_use();
    units_.adopt_user_grads();
  }
  if (progress.pre_backward && units_.handle(unit) != nullptr) {
    return;  // already raised for another output of the same forward
  }
  progress.pre_backward = true;
  const RangeScope range(units_.recorder(), Range::kPreBackward, unit);
  raise({Hook::kPreBackward, unit, invocation});
  if (FlatParamHandle* handle = units_.handle(unit); handle != nullptr) {
    handle->use_full_again();
  }
}

// The backward of one of several uses of a unit has ended: its parameters can be freed until the
// backward of the next use begins.
void Root::use_ended(UnitId unit) {
  if (!units_.handle(unit)->awaits_views()) {
    return;  // it was the last use; the accumulator runs next
  }
  no_more_gradients(unit);
}

// The backward of a use has ended without gradients for the unit's parameters.
void Root::no_more_gradients(UnitId unit) {
  progress_[unit].pre_backward = false;
  HookEvent event{Hook::kGradsReady, unit};
  event.grads = Grads::kNone;
  raise(event);
}

// [Note: Reduced at the end] FSDP2 detects the end of a unit's backward by the gradients of its
// inputs. If no input requires grad, the post-backward runs in autograd's final callback, in the
// order of the units. For a unit that is used more than once, the accumulator determines the end.
void Root::accumulated(UnitId unit) {
  Progress& progress = progress_[unit];
  if (units_.plan().plan.dialect == plan::Dialect::kFsdp2 && !progress.inputs_require_grad &&
      progress.invocation == 1) {
    progress.reduced_at_end = true;
    return;
  }
  grads_ready(unit);
}

void Root::grads_ready(UnitId unit) {
  progress_[unit].pre_backward = false;
  HookEvent event{Hook::kGradsReady, unit};
  event.grads = units_.handle(unit)->unsharded_gradients().empty() ? Grads::kNone : Grads::kAll;
  raise(event);
}

void Root::backward_end() {
  const RangeScope range(units_.recorder(), Range::kRootPostBackward);
  // If the program ends the step's backward, it reduces what is left then, last unit first.
  const bool at_end =
      syncs_ && units_.plan().plan.backward_finalization != plan::Finalization::kAutomatic;
  for (UnitId i = 0; i < progress_.size() && (!at_end || last_backward_); ++i) {
    const UnitId unit = at_end ? static_cast<UnitId>(progress_.size()) - 1 - i : i;
    if (progress_[unit].reduced_at_end) {
      grads_ready(unit);
    }
  }
  raise({Hook::kBackwardEnd, 0});
  in_backward_ = false;
  reset_progress();
  finish_backward();
}

void Root::finish_backward() {
  if (!last_backward_) {  // the schedule has not waited for the reductions
    try {
      units_.executor().settle();
    } catch (...) {
      faulted_ = true;
      throw;
    }
  }
  bool stored = false;
  for (const auto& [unit, handle] : units_.with_parameters()) {
    handle.use_shard();  // [Note: Hidden parameters]; most units are resharded already
    handle.gradient().publish();
    stored = stored || handle.gradient().exists();
  }
  if (stored) {
    units_.executor().finish_copies(
        /*all=*/true);  // an optimizer on the host may write the shards next
  }
  if (units_.plan().plan.dialect == plan::Dialect::kFsdp1) {
    note_kept();
  }
}

void Root::settle() {
  gathered_.require_hidden();
  if (!in_backward_ || faulted_ || torch::autograd::get_current_graph_task_id() != -1) {
    return;
  }
  // The user may have reset the gradients since. Those of the failed backward that were not
  // published yet would then count in the next one.
  units_.executor().enter();
  units_.executor().drain(/*keep=*/false);
  for (const auto& [unit, handle] : units_.with_parameters()) {
    if (std::ranges::none_of(handle.slots(), [](const auto& slot) {
          return slot.parameter.mutable_grad().defined();
        })) {
      handle.gradient().zero();
    }
  }
  abort();
}

void Root::abort() {
  const bool keep = !in_backward_ && !faulted_;
  in_backward_ = faulted_ = false;
  forward_root_ = kNoUnit;
  units_.executor().enter();
  units_.executor().drain(keep);
  HookEvent event{Hook::kAbort, 0};
  event.grads = keep ? Grads::kSome : Grads::kNone;
  if (units_.recorder() != nullptr) {
    units_.recorder()->hook(event);
  }
  shadow_.remember(event);
  schedule::ActionList actions;
  if (schedule_.on(event, actions).ok()) {
    for (const schedule::Action& action : actions) {
      if (ledger_ != nullptr) {
        static_cast<void>(ledger_->consume(action).ok());  // the ledger needs every action
      }
      try {
        units_.executor().execute(action, false);
      } catch (const std::exception&) {  // abort may follow a failed collective
      }
    }
  }
  reset_progress();
  for (const auto& [unit, handle] : units_.with_parameters()) {
    handle.drop_views();
    if (keep) {
      // See [Note: Exceptions]: a reset after the exception drops these gradients.
      handle.gradient().publish_zeros(units_.executor().unreduced(unit));
    }
    handle.gradient().publish();
  }
}

}  // namespace shardlens::fsdp
