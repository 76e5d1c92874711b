#include "core/schedule/gather.h"

namespace shardlens::schedule {

void Gathers::limit_gathers(UnitId unit) {
  // FSDP2's per-parameter layout is limited by the gather slot instead; FSDP1 waits at every
  // unshard (Fsdp1::unshard).
  if (!options.limit_all_gathers || options.dialect != plan::Dialect::kFsdp2 ||
      !sharded(units[unit]) || units[unit].spec.copy_out) {
    return;
  }
  EventId newest = kNoEvent;  // compute runs in order: a wait for the newest covers the older ones
  while (comm->pending_frees() >= CommState::kLimit) {
    newest = comm->pop_free();
  }
  if (newest != kNoEvent) {
    const Cause before = cause;
    cause = Cause::kLimiter;
    wait(copies_in(units[unit]) ? Stream::kCopyIn : Stream::kAllGather, unit, newest);
    cause = before;
  }
}

void Gathers::issue_gather(UnitId unit) {
  UnitData& u = units[unit];
  u.pending = true;
  u.state = UnitState::kUnsharding;
  if (copied(u) || (!sharded(u) && !copies_in(u))) {
    return;  // the shard is the whole flat parameter
  }
  if (u.sub_shard_event) {
    // The sub-shard was written on compute and is read by the all-gather.
    u.sub_shard_event = false;
    const EventId event = event_of(unit, UnitEvent::kSubSharded);
    wait(copies_in(u) ? Stream::kCopyIn : Stream::kAllGather, unit, event);
  }
  if (comm->gather && comm->gather->buffer.unit == base + unit) {
    flush_gather_slot();  // used twice in a row: free its last output before the next allocation
  }
  limit_gathers(unit);
  const BufferKind kind = per_parameter(u) ? BufferKind::kGathered : BufferKind::kUnsharded;
  const Stream copies = options.traced ? Stream::kCompute : Stream::kCopyIn;
  const Stream first = copies_in(u) || options.traced ? copies : Stream::kAllGather;
  const BufferId buffer = alloc(kind, unit, first);
  u.allocated = kind == BufferKind::kUnsharded;
  if (copies_in(u)) {
    const bool on_host = u.spec.cpu_offload && !u.sub_sharded;
    push(on_host ? Op::kToDevice : Op::kCopyIn, copies, unit, buffer);
    const EventId copied = record(copies, unit, UnitEvent::kCopiedIn);
    if (!sharded(u)) {
      return;  // no_shard with a cast: the copy is the result; wait_gather waits for it
    }
    wait(Stream::kAllGather, unit, copied);
  }
  push(Op::kAllGather, Stream::kAllGather, unit, buffer, kNoEvent,
       u.sub_sharded ? u.spec.kept : u.spec.gather);
  record(Stream::kAllGather, unit, UnitEvent::kGathered);
}

void Gathers::wait_gather(UnitId unit, bool keep) {
  UnitData& u = units[unit];
  u.pending = false;
  u.state = UnitState::kUnsharded;
  if (copied(u)) {
    push(Op::kCopyIn, Stream::kCompute, unit,
         alloc(BufferKind::kUnsharded, unit, Stream::kCompute));
    u.allocated = true;
    return;
  }
  if (!sharded(u)) {
    if (copies_in(u)) {
      wait(Stream::kCompute, unit, event_of(unit, UnitEvent::kCopiedIn));
    }
    return;
  }
  wait(Stream::kCompute, unit, event_of(unit, UnitEvent::kGathered));
  if (per_parameter(u)) {
    const BufferId gathered = current(BufferKind::kGathered, unit);
    push(Op::kCopyOut, Stream::kCompute, unit,
         alloc(BufferKind::kUnsharded, unit, Stream::kCompute));
    u.allocated = true;
    const EventId copied = record(Stream::kCompute, unit, UnitEvent::kCopiedOut);
    if (options.traced) {
      free(gathered, Stream::kCompute);
    } else if (keep) {
      comm->gather = CommState::GatherSlot{gathered, copied};
    } else {
      wait(Stream::kCopyIn, unit, copied);
      wait(Stream::kAllGather, unit, copied);
      free(gathered);
    }
  }
  if (u.sub_sharded) {
    u.sub_sharded = false;
    free(current(BufferKind::kSubShard, unit));
  }
}

void Gathers::flush_gather_slot() {
  if (!comm->gather) {
    return;
  }
  // The all-gather streams may overwrite the kept output only after it was copied out.
  const CommState::GatherSlot slot = *comm->gather;
  comm->gather.reset();
  wait(Stream::kCopyIn, slot.buffer.unit - base, slot.copied_out);
  wait(Stream::kAllGather, slot.buffer.unit - base, slot.copied_out);
  free(slot.buffer);
}

void Gathers::use_full(UnitId unit) {
  units[unit].full = true;
  push(Op::kUseFull, Stream::kCompute, unit);
}

void Gathers::use_shard(UnitId unit) {
  units[unit].full = false;
  push(Op::kUseShard, Stream::kCompute, unit);
}

void Gathers::free_unsharded(UnitId unit) {
  UnitData& u = units[unit];
  if (!u.allocated) {
    return;
  }
  u.allocated = false;
  free(current(BufferKind::kUnsharded, unit));
  if (sharded(u) && options.limit_all_gathers && options.dialect == plan::Dialect::kFsdp2 &&
      !u.spec.copy_out) {
    push(Op::kRecord, Stream::kCompute, unit, {}, comm->push_free());
  }
}

void Gathers::drop_pending(UnitId unit) {
  UnitData& u = units[unit];
  if (!u.pending) {
    return;
  }
  u.pending = false;
  u.state = u.sub_sharded ? UnitState::kSubSharded : UnitState::kSharded;
  if (copied(u) || (!sharded(u) && !copies_in(u))) {
    return;
  }
  // The storage must not be reused while the all-gather still writes to it.
  wait(Stream::kCompute, unit,
       event_of(unit, sharded(u) ? UnitEvent::kGathered : UnitEvent::kCopiedIn));
  if (per_parameter(u)) {
    free(current(BufferKind::kGathered, unit));
  } else {
    free_unsharded(unit);
  }
}

}  // namespace shardlens::schedule
