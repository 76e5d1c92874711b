#include "core/schedule/fsdp1.h"

namespace shardlens::schedule {

// _unshard: the limiter waits first, even if no all-gather follows. The views are made here, before
// the wait for the all-gather, so that a forward prefetch makes them one unit early.
void Fsdp1::unshard(UnitId unit, bool forward) {
  UnitData& u = units[unit];
  if (options.limit_all_gathers && comm->pending_frees() >= CommState::kLimit) {
    const Cause before = cause;
    cause = Cause::kLimiter;
    push(Op::kHostWait, Stream::kCompute, unit, {}, comm->pop_free());
    cause = before;
  }
  const bool gathers = (sharded(u) || copies_in(u)) && !u.allocated && !u.pending;
  if (gathers) {
    issue_gather(unit);
  }
  u.points_to_shard = false;
  u.skipped_sharded_views = false;
  if ((forward || gathers || !u.full) && !(u.pending && per_parameter(u))) {
    use_full(unit);
  }
  if (!u.pending) {
    u.state = UnitState::kUnsharded;
  }
}

void Fsdp1::wait_unshard(UnitId unit) {
  if (units[unit].pending) {
    wait_gather(unit, /*keep=*/false);
    if (per_parameter(units[unit])) {
      use_full(unit);  // PyTorch's FSDP1 has no such layout; the copy-out allocates the parameters
    }
  }
}

// `forward`: called from the post-forward.
void Fsdp1::reshard(UnitId unit, bool give_back, bool forward, bool grad_mode) {
  UnitData& u = units[unit];
  u.points_to_shard = true;
  u.skipped_sharded_views = options.use_orig_params && forward && grad_mode &&
                            (u.after_forward == AfterForward::kKeep || !sharded(u));
  u.prefetched = false;
  // no_shard frees its low-precision copy after backward.
  const bool frees = give_back || (!sharded(u) && !forward);
  if (frees && u.pending) {
    wait_unshard(unit);  // an unused prefetch; its storage must not be freed while it is written
  }
  // Parameters that are kept stay usable between forward and backward. PyTorch sets the parameters
  // of FULL_SHARD's root to the shard during this time.
  if (u.full && (frees || !forward || !grad_mode)) {
    use_shard(unit);
  }
  if (!u.full && !u.pending) {
    u.state = UnitState::kSharded;
  }
  if (frees) {
    free_unsharded(unit);
  }
  if (give_back && options.limit_all_gathers) {
    push(Op::kRecord, Stream::kCompute, unit, {}, comm->push_free());
  }
}

bool Fsdp1::frees_in_backward(UnitId unit) const {
  return sharded(units[unit]) && (sync() || units[unit].after_forward == AfterForward::kFree);
}

void Fsdp1::prefetch(UnitId target, bool forward, Cause why) {
  UnitData& u = units[target];
  if (!u.spec.has_parameters || u.prefetched ||
      !(forward ? u.needs_pre_forward : u.needs_pre_backward)) {
    return;
  }
  const Cause before = cause;
  cause = why;
  unshard(target, forward);
  u.prefetched = true;
  cause = before;
}

void Fsdp1::forward_prefetch(UnitId unit) {
  const UnitData& u = units[unit];
  if (!u.forward_prefetch.empty()) {
    for (const UnitId target : u.forward_prefetch) {
      prefetch(target, /*forward=*/true, Cause::kExplicitPrefetch);
    }
    return;
  }
  if (options.forward_prefetch > 0 && u.pre_forward_index &&
      *u.pre_forward_index + 1 < forward_order_.size()) {
    prefetch(forward_order_[*u.pre_forward_index + 1], /*forward=*/true, Cause::kForwardPrefetch);
  }
}

void Fsdp1::backward_prefetch(UnitId unit) {
  const UnitData& u = units[unit];
  if (u.post_forward_index && *u.post_forward_index > 0) {
    prefetch(post_forward_order[*u.post_forward_index - 1], /*forward=*/false,
             Cause::kBackwardPrefetch);
  }
}

void Fsdp1::pre_forward(UnitId unit, bool recompute) {
  UnitData& u = units[unit];
  if (!u.spec.has_parameters) {
    if (!recompute) {
      u.phase = Phase::kForward;
      u.ran_forward = true;
    }
    return;
  }
  if (recompute) {
    if (u.state == UnitState::kUnsharded) {
      use_full(unit);  // See [Note: Fresh views]
    } else {
      unshard(unit, /*forward=*/true);
      wait_unshard(unit);
    }
    return;
  }
  u.phase = Phase::kForward;
  u.ran_forward = true;
  if (first_iteration_ && !u.pre_forward_index) {
    u.pre_forward_index = static_cast<uint32_t>(forward_order_.size());
    forward_order_.push_back(unit);
  }
  if (!u.prefetched) {
    unshard(unit, /*forward=*/true);
  }
  u.needs_pre_forward = false;
  wait_unshard(unit);
  forward_prefetch(unit);
}

void Fsdp1::post_forward(UnitId unit, const HookEvent& event) {
  if (event.recompute) {
    return;
  }
  end_forward(unit, event);
  if (forward_root == kNoUnit && !event.grad_mode) {
    drop_prefetched();
  }
}

void Fsdp1::end_forward(UnitId unit, const HookEvent& event) {
  UnitData& u = units[unit];
  u.phase = Phase::kIdle;
  if (forward_root == unit) {
    forward_root = kNoUnit;
  }
  if (!u.spec.has_parameters) {
    return;
  }
  const bool used_before = u.post_forward_index.has_value();
  // PyTorch treats index 0 as "not set", so the first unit's index is that of its last use.
  if (!u.post_forward_index || *u.post_forward_index == 0) {
    u.post_forward_index = static_cast<uint32_t>(post_forward_order.size());
  }
  post_forward_order.push_back(unit);
  const bool give_back = unit != 0 && sharded(u) && u.after_forward == AfterForward::kFree;
  reshard(unit, give_back, /*forward=*/true, event.grad_mode);
  if (event.grad_mode) {
    // A use that failed does not cancel the backward of an earlier one.
    u.needs_pre_backward = (used_before && u.needs_pre_backward) || event.grads != Grads::kNone;
    u.ran_pre_backward = false;
  }
}

// Units that were prefetched for a forward without gradients that did not use them. PyTorch leaves
// them unsharded, so that an optimizer finds unsharded parameters.
void Fsdp1::drop_prefetched() {
  for (UnitId unit = 0; unit < units.size(); ++unit) {
    if (units[unit].pending || units[unit].prefetched) {
      reshard(unit, sharded(units[unit]), /*forward=*/false, /*grad_mode=*/false);
    }
  }
}

void Fsdp1::pre_backward(UnitId unit) {
  UnitData& u = units[unit];
  backward = true;
  if (!u.spec.has_parameters || u.ran_pre_backward) {
    return;
  }
  u.phase = Phase::kPreBackward;
  if (u.needs_pre_backward) {
    if (!u.prefetched) {
      unshard(unit, /*forward=*/false);
    }
    wait_unshard(unit);
  }
  u.needs_pre_backward = false;
  if (!u.backward_prefetch.empty()) {
    for (const UnitId target : u.backward_prefetch) {
      prefetch(target, /*forward=*/false, Cause::kExplicitPrefetch);
    }
  } else if (options.backward_prefetch == plan::BackwardPrefetch::kPre) {
    backward_prefetch(unit);
  }
  u.ran_pre_backward = true;
}

void Fsdp1::post_backward(UnitId unit, Grads grads) {
  UnitData& u = units[unit];
  u.phase = Phase::kPostBackward;
  if (!u.spec.has_parameters) {
    return;
  }
  u.has_grad = u.has_grad || (u.spec.trainable && grads != Grads::kNone);
  reshard(unit, frees_in_backward(unit), /*forward=*/false, /*grad_mode=*/true);
  if (u.backward_prefetch.empty() && options.backward_prefetch == plan::BackwardPrefetch::kPost) {
    backward_prefetch(unit);
  }
  if (sync() && u.has_grad) {
    fsdp1_reduce(unit);
  }
}

void Fsdp1::backward_end() {
  cause = Cause::kBackwardEnd;
  if (sync()) {
    for (UnitId unit = 0; unit < units.size(); ++unit) {
      if (units[unit].has_grad) {  // only earlier microbatches without sync have used it
        fsdp1_reduce(unit);
      }
    }
    release_reductions();
    for (UnitId unit = 0; unit < units.size(); ++unit) {
      finish_offload(unit);
    }
  }
  first_iteration_ = false;
  post_forward_order.clear();
  for (UnitId unit = 0; unit < units.size(); ++unit) {
    UnitData& u = units[unit];
    u.stored = false;  // the wait above is for the last store of that stream
    if (u.spec.has_parameters && (!u.points_to_shard || u.skipped_sharded_views)) {
      reshard(unit, frees_in_backward(unit), /*forward=*/false, /*grad_mode=*/true);
    }
    u.ran_pre_backward = u.needs_pre_backward = u.prefetched = u.stepped = false;
    u.post_forward_index.reset();
    u.phase = Phase::kIdle;
  }
  backward = false;
}

void Fsdp1::root_pre_forward(UnitId unit) {
  for (UnitData& u : units) {
    u.needs_pre_forward = u.spec.has_parameters;
    u.prefetched = u.prefetched && options.forward_prefetch == 0;
  }
  begin_forward(unit);
}

void Fsdp1::user_unshard(UnitId unit) {
  if (forward_root == kNoUnit && !backward) {
    wait_for_compute();  // the shard was last written on compute
  }
  unshard(unit, /*forward=*/false);
}

void Fsdp1::user_reshard(UnitId unit) {
  reshard(unit, sharded(units[unit]), /*forward=*/false, /*grad_mode=*/true);
}

}  // namespace shardlens::schedule
