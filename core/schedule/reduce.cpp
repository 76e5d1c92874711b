#include "core/schedule/reduce.h"

#include <algorithm>
#include <cstddef>
#include <span>

namespace shardlens::schedule {

// [Note: Lifetime of reduction buffers] FSDP2 keeps a reduction's input until compute waits for the
// reduction, in the next unit's post-backward or at the end of backward: at most the unsharded
// gradients of two units exist, or of one more than ScheduleOptions::reduce_inputs. FSDP1 frees it
// at once, on the stream that reads it.

void Reductions::release_reductions(size_t keep) {
  const size_t count = comm->reduces.size() - std::min(keep, comm->reduces.size());
  for (const CommState::ReduceSlot& slot : std::span(comm->reduces).first(count)) {
    wait(Stream::kCompute, slot.unit - base, slot.done);
    for (const BufferId& buffer : {slot.input, slot.output}) {
      if (buffer.kind != BufferKind::kNone) {
        free(buffer);
      }
    }
  }
  comm->reduces.erase(comm->reduces.begin(),
                      comm->reduces.begin() + static_cast<std::ptrdiff_t>(count));
}

void Reductions::release_reductions_of(UnitId unit) {
  const auto last = std::ranges::find(comm->reduces.rbegin(), comm->reduces.rend(), base + unit,
                                      &CommState::ReduceSlot::unit);
  if (last != comm->reduces.rend()) {
    release_reductions(static_cast<size_t>(last - comm->reduces.rbegin()));
  }
}

void Reductions::finish_all_reduce(UnitId unit) {
  UnitData& u = units[unit];
  if (!u.stored) {
    return;
  }
  u.stored = false;
  wait(Stream::kCompute, unit, event_of(unit, UnitEvent::kStored));
  if (options.dialect == plan::Dialect::kFsdp2) {
    free(current(BufferKind::kReduceOutput, unit));
  }
}

void Reductions::store(UnitId unit, Stream stream, BufferId gradient) {
  const bool offload = units[unit].spec.cpu_offload;
  push(offload ? Op::kToHost : Op::kStoreGrad, stream, unit, gradient);
  if (offload) {
    units[unit].to_host = record(stream, unit, UnitEvent::kToHost);
  } else if (units[unit].spec.optimizer_in_backward) {
    push(Op::kStep, stream, unit, gradient);
    units[unit].stepped = true;
  }
}

void Reductions::finish_offload(UnitId unit) {
  UnitData& u = units[unit];
  if (u.to_host != kNoEvent) {  // the optimizer runs on the host
    push(Op::kHostWait, Stream::kCompute, unit, {}, u.to_host);
    u.to_host = kNoEvent;
  }
}

// Casts (and packs) the gradient on `stream` if the reduction needs it. Returns the buffer that the
// reduction reads.
BufferId Reductions::reduce_input(UnitId unit, Stream stream) {
  UnitData& u = units[unit];
  if (!u.spec.reduce_copy_in) {
    u.has_grad = false;
    return take_grad(unit);
  }
  const BufferId input = u.accumulated ? current(BufferKind::kReduceInput, unit)
                                       : alloc(BufferKind::kReduceInput, unit, stream);
  if (u.has_grad) {
    push(Op::kReduceCopyIn, stream, unit, input);
    free(take_grad(unit), stream);
  }
  u.has_grad = u.accumulated = false;
  return input;
}

// [Note: Accumulation without sync] Autograd adds to the unsharded gradient in the gradient's
// dtype. If that is not reduce_dtype, FSDP2 adds each backward's gradient to a sum in reduce_dtype
// (to_accumulated_grad_if_needed), so that the sum over many microbatches does not lose precision
// to bf16.
void Reductions::accumulate_in_reduce_dtype(UnitId unit) {
  UnitData& u = units[unit];
  if (u.has_grad && u.spec.reduce_cast) {
    release_reductions_of(unit);
    static_cast<void>(reduce_input(unit, Stream::kCompute));
    u.accumulated = true;
  }
}

void Reductions::fsdp2_reduce(UnitId unit) {
  UnitData& u = units[unit];
  const bool replicated = options.replicate > 1;
  if (u.spec.groups == 1) {
    release_reductions(static_cast<size_t>(options.reduce_inputs - 1));
  }
  release_reductions_of(unit);
  finish_all_reduce(unit);
  const BufferId input = reduce_input(unit, Stream::kCompute);
  if (!sharded(u) && !replicated) {
    store(unit, Stream::kCompute, input);
    free(input);
    return;
  }
  const Stream reads = sharded(u) ? Stream::kReduceScatter : Stream::kAllReduce;
  wait(reads, unit, record(Stream::kCompute, unit, UnitEvent::kGradReady));
  if (!sharded(u)) {
    push(Op::kAllReduce, reads, unit, input, kNoEvent, u.spec.replicate);
    store(unit, reads, input);
    comm->reduces.push_back({base + unit, input, {}, record(reads, unit, UnitEvent::kReduced)});
    return;
  }
  const BufferId output =
      u.partial ? current(BufferKind::kReduceOutput, unit)
                : alloc(BufferKind::kReduceOutput, unit, options.traced ? Stream::kCompute : reads);
  if (copied(u)) {
    push(Op::kReduceCopyIn, reads, unit, output);
  } else {
    push(Op::kReduceScatter, reads, unit, output, kNoEvent, u.spec.reduce);
  }
  u.partial = replicated && !u.all_reduce;
  if (!replicated) {
    store(unit, reads, output);
  }
  const EventId done = record(reads, unit, UnitEvent::kReduced);
  comm->reduces.push_back({base + unit, input, replicated ? BufferId{} : output, done});
  if (replicated && u.all_reduce) {
    wait(Stream::kAllReduce, unit, done);
    push(Op::kAllReduce, Stream::kAllReduce, unit, output, kNoEvent, u.spec.replicate);
    store(unit, Stream::kAllReduce, output);
    record(Stream::kAllReduce, unit, UnitEvent::kStored);
    u.stored = true;
  }
}

void Reductions::fsdp1_reduce(UnitId unit) {
  UnitData& u = units[unit];
  const Stream reads = sharded(u) ? Stream::kReduceScatter : Stream::kAllReduce;
  wait(reads, unit, record(Stream::kCompute, unit, UnitEvent::kGradReady));
  const BufferId input = reduce_input(unit, reads);
  if (!sharded(u)) {  // FSDP1 all-reduces over a group of one rank too
    push(Op::kAllReduce, reads, unit, input, kNoEvent, u.spec.replicate);
    store(unit, reads, input);
    free(input, reads);
    comm->reduces = {{base + unit, {}, {}, record(reads, unit, UnitEvent::kReduced)}};
    return;
  }
  const BufferId output = alloc(BufferKind::kReduceOutput, unit, reads);
  push(Op::kReduceScatter, reads, unit, output, kNoEvent, u.spec.reduce);
  free(input, reads);
  Stream stores = reads;
  if (options.replicate > 1) {
    stores = Stream::kAllReduce;
    wait(stores, unit, record(reads, unit, UnitEvent::kReduced));
    push(Op::kAllReduce, stores, unit, output, kNoEvent, u.spec.replicate);
    u.stored = true;
  }
  store(unit, stores, output);
  free(output, stores);
  const EventId done = record(stores, unit, u.stored ? UnitEvent::kStored : UnitEvent::kReduced);
  comm->reduces = {{base + unit, {}, {}, done}};
}

}  // namespace shardlens::schedule
