#include "core/schedule/dialect.h"

namespace shardlens::schedule {
namespace {

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::kIdle:
      return "idle";
    case Phase::kForward:
      return "in forward";
    case Phase::kPreBackward:
      return "in backward";
    case Phase::kPostBackward:
      return "after backward";
  }
  return "";
}

std::string_view name_of(UnitState state) {
  switch (state) {
    case UnitState::kSharded:
      return "sharded";
    case UnitState::kUnsharding:
      return "unsharding";
    case UnitState::kUnsharded:
      return "unsharded";
    case UnitState::kSubSharded:
      return "sub-sharded";
  }
  return "";
}

// Why `event` is not legal for a unit in this state; null if it is legal.
const char* refusal(const Dialect& s, const UnitData& u, UnitId unit, const HookEvent& event) {
  const bool in_forward = u.phase == Phase::kForward;
  switch (event.hook) {
    case Hook::kRootPreForward:
      return s.forward_root != kNoUnit
                 ? "a forward of a root is already running; abort ends it after an exception"
             : in_forward ? "its forward is already running"
                          : nullptr;
    case Hook::kPreForward:
      if (event.recompute) {
        return s.backward ? nullptr : "a recomputation happens inside backward";
      }
      if (s.forward_root == kNoUnit) {
        return "no root_pre_forward came before";
      }
      return in_forward ? "its forward is already running; abort ends it after an exception"
                        : nullptr;
    case Hook::kPostForward:
      if (event.recompute) {
        return s.backward ? nullptr : "a recomputation happens inside backward";
      }
      return in_forward ? nullptr : "no pre_forward came before";
    case Hook::kPreBackward:
      if (in_forward) {
        return "its forward has not ended";
      }
      if (!u.ran_forward) {
        return "it has not run forward";
      }
      return s.options.dialect == plan::Dialect::kFsdp1 && u.spec.has_parameters &&
                     (s.sharded(u) || s.copies_in(u)) && !u.needs_pre_backward &&
                     !u.ran_pre_backward
                 ? "its backward has run already; fsdp1 needs a forward before each backward"
                 : nullptr;
    case Hook::kGradsReady:
      if (in_forward) {
        return "its forward has not ended";
      }
      if (event.grads == Grads::kLast) {
        return u.ran_forward ? nullptr : "it has not run forward";
      }
      if (!s.backward) {
        return "no backward is running: no pre_backward came before";
      }
      if (event.grads != Grads::kNone && u.spec.trainable && u.spec.has_parameters &&
          (u.phase == Phase::kIdle)) {
        return "gradients came without its pre_backward: were its parameters used outside its "
               "forward?";
      }
      return nullptr;
    case Hook::kBackwardEnd:
      if (unit != 0) {
        return "it is not the root";
      }
      if (s.forward_root != kNoUnit) {
        return "a forward is running";
      }
      return s.backward ? nullptr : "no backward is running";
    case Hook::kOptimizerDone:
      if (unit != 0) {
        return "it is not the root";
      }
      return s.forward_root != kNoUnit || s.backward ? "a forward or backward is running" : nullptr;
    case Hook::kReshard:
      return in_forward || u.phase == Phase::kPreBackward ? "its parameters are in use" : nullptr;
    case Hook::kUnshard:
    case Hook::kWaitUnshard:
    case Hook::kAbort:
      return nullptr;
  }
  return "there is no such hook";
}

}  // namespace

std::string Dialect::check(const HookEvent& event) const {
  if (event.unit < base || event.unit - base >= units.size()) {
    return "schedule: " + std::string(shardlens::name_of(event.hook)) + " of unit " +
           std::to_string(event.unit) + ", but units are numbered " + std::to_string(base) +
           " to " + std::to_string(base + units.size() - 1);
  }
  const UnitData& u = units[event.unit - base];
  const char* why = refusal(*this, u, event.unit - base, event);
  if (why == nullptr) {
    return {};
  }
  return "schedule: " + std::string(shardlens::name_of(event.hook)) + " of unit '" + u.spec.name +
         "' (" + std::string(name_of(u.phase)) + ", " + std::string(name_of(u.state)) + "): " + why;
}

void Dialect::begin_forward(UnitId root) {
  forward_root = root;
  if (post_forward_order.size() > kForwardsRemembered * units.size() && !backward) {
    post_forward_order.clear();
    for (UnitData& u : units) {
      u.order.clear();
      u.post_forward_index.reset();
    }
  }
  wait_for_compute();
}

void Dialect::wait_for_compute() {
  if (!optimizer_event_) {
    record_compute();
  }
  optimizer_event_ = false;
  if (any_copy_in) {
    wait(Stream::kCopyIn, 0, first_event);
  }
  wait(Stream::kAllGather, 0, first_event);
  if (options.dialect == plan::Dialect::kFsdp2) {  // FSDP1 does not clear its queue
    comm->forget_frees(frees_before_event_);
  }
}

void Dialect::record_compute() {
  push(Op::kRecord, Stream::kCompute, 0, {}, first_event);
  frees_before_event_ = comm->frees();
}

void Dialect::optimizer_done() {
  record_compute();
  optimizer_event_ = true;
}

void Dialect::abort(Grads grads) {
  const bool keep = grads == Grads::kSome && !backward;
  flush_gather_slot();
  release_reductions();
  for (UnitId unit = 0; unit < units.size(); ++unit) {
    UnitData& u = units[unit];
    finish_all_reduce(unit);
    finish_offload(unit);
    if (u.full) {
      use_shard(unit);  // before drop_pending(): FSDP1 makes the views before it waits
    }
    drop_pending(unit);
    free_unsharded(unit);
    if (u.sub_sharded) {
      free(current(BufferKind::kSubShard, unit));
    }
    if (u.partial && !keep) {
      free(current(BufferKind::kReduceOutput, unit));
    }
    if (u.accumulated && !keep) {
      free(current(BufferKind::kReduceInput, unit));
    }
    if (!keep && (u.has_grad || u.phase == Phase::kPreBackward)) {
      free(take_grad(unit));  // the gradients that autograd has added so far
    }
    u.state = UnitState::kSharded;
    u.phase = Phase::kIdle;
    u.sub_sharded = u.sub_shard_event = u.ran_forward = false;
    u.partial = u.partial && keep;
    u.accumulated = u.accumulated && keep;
    u.has_grad = u.has_grad && keep;
    u.unfinished = u.unfinished && keep;
    u.order.clear();
    u.post_forward_index.reset();
    u.prefetched = u.needs_pre_forward = u.needs_pre_backward = u.ran_pre_backward = false;
    u.skipped_sharded_views = u.stepped = false;
    u.points_to_shard = true;
  }
  post_forward_order.clear();
  forward_root = kNoUnit;
  backward = false;
}

void Dialect::on(const HookEvent& event, UnitId unit) {
  switch (event.hook) {
    case Hook::kRootPreForward:
      return root_pre_forward(unit);
    case Hook::kPreForward:
      return pre_forward(unit, event.recompute);
    case Hook::kPostForward:
      return post_forward(unit, event);
    case Hook::kPreBackward:
      return pre_backward(unit);
    case Hook::kGradsReady:
      return post_backward(unit, event.grads);
    case Hook::kBackwardEnd:
      return backward_end();
    case Hook::kOptimizerDone:
      return optimizer_done();
    case Hook::kUnshard:
      cause = Cause::kUser;
      return user_unshard(unit);
    case Hook::kWaitUnshard:
      cause = Cause::kUser;
      return wait_unshard(unit);
    case Hook::kReshard:
      cause = Cause::kUser;
      return user_reshard(unit);
    case Hook::kAbort:
      return abort(event.grads);
  }
}

}  // namespace shardlens::schedule
