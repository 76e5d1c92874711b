#include "core/schedule/fsdp2.h"

namespace shardlens::schedule {
namespace {

bool is_last_group(const UnitData& unit) {
  return unit.spec.group + 1 == unit.spec.groups;
}

}  // namespace

void Fsdp2::unshard(UnitId unit) {
  const UnitData& u = units[unit];
  if (u.pending || u.state == UnitState::kUnsharded ||
      (!u.unshard_in_backward && u.phase == Phase::kPreBackward)) {
    return;
  }
  issue_gather(unit);
}

void Fsdp2::wait_unshard(UnitId unit) {
  UnitData& u = units[unit];
  if (!u.pending) {
    return;
  }
  const bool forward = u.phase == Phase::kForward;
  if (forward) {
    flush_gather_slot();
  }
  wait_gather(unit, /*keep=*/forward);
  use_full(unit);
}

void Fsdp2::reshard(UnitId unit) {
  UnitData& u = units[unit];
  if (u.phase == Phase::kForward) {
    if (u.after_forward == AfterForward::kKeep || !sharded(u)) {
      return;
    }
    if (u.after_forward == AfterForward::kSubMesh) {
      if (u.state == UnitState::kUnsharded) {
        push(Op::kCopyOut, Stream::kCompute, unit,
             alloc(BufferKind::kSubShard, unit, Stream::kCompute));
        use_shard(unit);
        free_unsharded(unit);
        record(Stream::kCompute, unit, UnitEvent::kSubSharded);
        u.state = UnitState::kSubSharded;
        u.sub_sharded = u.sub_shard_event = true;
      }
      return;
    }
  }
  if (u.state == UnitState::kUnsharded) {
    u.state = UnitState::kSharded;
    use_shard(unit);
    free_unsharded(unit);
  } else if (u.state == UnitState::kSubSharded) {
    u.state = UnitState::kSharded;
    u.sub_sharded = u.sub_shard_event = false;
    use_shard(unit);
    free(current(BufferKind::kSubShard, unit));
  }
  // A pending all-gather stays pending: the next use waits for it, or the end of backward drops it.
  // With a pending all-gather over the smaller mesh, PyTorch 2.11 marks the unit as sharded and
  // then fails in the copy-out; here the sub-shard is kept until the wait.
}

void Fsdp2::prefetch(UnitId target, Phase phase, Cause why) {
  UnitData& u = units[target];
  // A shard that the optimizer may be writing is not gathered: its backward is over. (FSDP1's
  // backward has no such prefetch.)
  if (!u.spec.has_parameters || u.stepped) {
    return;
  }
  const Cause cause_before = cause;
  const Phase phase_before = u.phase;
  cause = why;
  u.phase = phase;
  unshard(target);
  u.phase = phase_before;
  cause = cause_before;
}

void Fsdp2::pre_forward(UnitId unit, bool recompute) {
  UnitData& u = units[unit];
  if (recompute) {
    if (!u.spec.has_parameters) {
      return;
    }
    const bool usable = u.state == UnitState::kUnsharded;
    unshard(unit);
    wait_unshard(unit);
    if (usable) {
      use_full(unit);  // See [Note: Fresh views]
    }
    return;
  }
  u.phase = Phase::kForward;
  u.ran_forward = true;
  if (u.spec.has_parameters) {
    const bool usable = u.state == UnitState::kUnsharded;
    unshard(unit);
    wait_unshard(unit);
    // [Note: Fresh views] The parameters are views of one buffer and have their own autograd nodes.
    // A forward makes new views even if the unit is unsharded. Otherwise its backward would end
    // with the nodes of an earlier forward (or with none, after a forward without gradients).
    if (usable) {
      use_full(unit);
    }
  }
  for (const UnitId target : u.forward_prefetch) {
    prefetch(target, Phase::kForward, Cause::kExplicitPrefetch);
  }
}

void Fsdp2::post_forward(UnitId unit, const HookEvent& event) {
  UnitData& u = units[unit];
  if (event.recompute) {
    return;  // the post-backward reshards
  }
  if (u.spec.has_parameters) {
    reshard(unit);
    u.order.push_back(static_cast<uint32_t>(post_forward_order.size()));
    post_forward_order.push_back(unit);
  }
  u.phase = Phase::kIdle;
  if (forward_root == unit - u.spec.group && is_last_group(u)) {
    flush_gather_slot();
    forward_root = kNoUnit;
  }
}

void Fsdp2::backward_prefetch(UnitId unit) {
  UnitData& u = units[unit];
  if (u.order.empty()) {
    return;  // a second backward of the same forward
  }
  const uint32_t place = u.order.back();
  u.order.pop_back();
  if (options.backward_prefetch != plan::BackwardPrefetch::kPre) {
    return;
  }
  const auto gather_ahead = [this](UnitId target) {
    prefetch(target, Phase::kPreBackward, Cause::kBackwardPrefetch);
  };
  if (u.spec.groups == 1) {
    if (place > 0) {
      gather_ahead(post_forward_order[place - 1]);
    }
    return;
  }
  // The second group is the last but one in backward: the next unit is gathered during the
  // reduction of the first group.
  if (u.spec.group != 1) {
    return;
  }
  const auto first_of = [this](UnitId id) { return id - units[id].spec.group; };
  UnitId target = kNoUnit;
  for (uint32_t at = place; at > 0; --at) {
    const UnitId before = post_forward_order[at - 1];
    if (first_of(before) == first_of(unit)) {
      continue;
    }
    if (target != kNoUnit && first_of(before) != target) {
      break;
    }
    target = first_of(before);
    gather_ahead(before);
  }
}

void Fsdp2::pre_backward(UnitId unit) {
  UnitData& u = units[unit];
  backward = true;
  if (u.phase == Phase::kPreBackward && u.spec.has_parameters) {
    return;  // another output of the same unit
  }
  u.phase = Phase::kPreBackward;
  if (u.spec.has_parameters) {
    unshard(unit);
    wait_unshard(unit);
    if (units[unit - u.spec.group + u.spec.groups - 1].backward_prefetch.empty()) {
      backward_prefetch(unit);
    }
  }
  for (const UnitId target : u.backward_prefetch) {
    prefetch(target, Phase::kPreBackward, Cause::kExplicitPrefetch);
  }
}

void Fsdp2::post_backward(UnitId unit, Grads grads) {
  UnitData& u = units[unit];
  u.phase = Phase::kPostBackward;
  if (!u.spec.has_parameters) {
    return;
  }
  u.has_grad = u.has_grad || (u.spec.trainable && grads != Grads::kNone);
  const bool last_module = grads == Grads::kLast;  // see [Note: Gradients of the last module]
  if (u.reshard_after_backward && !last_module) {
    reshard(unit);
  }
  // Without a shard axis the all-reduce is the only reduction.
  const bool waits = !sharded(u) && options.replicate > 1 && !u.all_reduce;
  if ((!u.sync && !last_module) || waits) {
    u.unfinished = true;
    accumulate_in_reduce_dtype(unit);
    return;
  }
  u.unfinished = u.unfinished && last_module;
  if (u.spec.groups > 1 && is_last_group(u)) {
    release_reductions(static_cast<size_t>(options.reduce_inputs - 1));
  }
  // Zeros of parameters without a gradient, once the unit has been unsharded.
  u.has_grad = u.has_grad || (options.reduces_unused && u.spec.trainable && u.ran_forward);
  if (u.has_grad || u.accumulated) {
    fsdp2_reduce(unit);
    if (last_module && (sharded(u) || options.replicate > 1)) {
      const bool all_reduces = sharded(u) && u.stored;
      wait(Stream::kCompute, unit,
           event_of(unit, all_reduces ? UnitEvent::kStored : UnitEvent::kReduced));
    }
  }
}

// What finalize_backward() does before it waits: unlike autograd's callback it goes through the
// units in reverse.
void Fsdp2::finish_units() {
  for (auto unit = static_cast<UnitId>(units.size()); unit-- > 0;) {
    UnitData& u = units[unit];
    u.sync = u.all_reduce = true;
    if (u.unfinished) {
      post_backward(unit, Grads::kNone);
    } else if (u.reshard_after_backward) {
      reshard(unit);
    }
    u.phase = Phase::kIdle;
  }
}

void Fsdp2::backward_end() {
  cause = Cause::kBackwardEnd;
  const bool by_program = options.finalization != plan::Finalization::kAutomatic;
  for (UnitId first = 0; first < units.size(); first += units[first].spec.groups) {
    const UnitId end = first + units[first].spec.groups;
    for (UnitId unit = end; unit-- > first;) {
      UnitData& u = units[unit];
      if (u.phase != Phase::kPostBackward) {
        if (by_program && u.sync) {
          u.unfinished = true;  // and unsharded
        } else {
          post_backward(unit, Grads::kNone);
        }
      }
      u.phase = Phase::kIdle;
      u.stepped = false;
    }
  }
  if (by_program && last_backward) {
    finish_units();
  }
  for (UnitId first = 0; first < units.size(); first += units[first].spec.groups) {
    const UnitId end = first + units[first].spec.groups;
    for (UnitId unit = first; last_backward && unit < end; ++unit) {
      finish_all_reduce(unit);
      finish_offload(unit);
      drop_pending(unit);
      if (units[unit].state == UnitState::kSubSharded) {
        reshard(unit);
      }
      units[unit].order.clear();
    }
  }
  if (last_backward) {
    post_forward_order.clear();
    release_reductions();
  }
  backward = false;
}

void Fsdp2::user_unshard(UnitId unit) {
  if (forward_root == kNoUnit && !backward && units[unit].state == UnitState::kSharded) {
    wait_for_compute();  // the shard was last written on compute
  }
  unshard(unit);
}

}  // namespace shardlens::schedule
