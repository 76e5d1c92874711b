#include "core/schedule/schedule_state.h"

namespace shardlens::schedule {
namespace {

bool is_of_gradients(BufferKind kind) {
  return kind == BufferKind::kUnshardedGrad || kind == BufferKind::kReduceInput ||
         kind == BufferKind::kReduceOutput;
}

}  // namespace

void ScheduleState::push(
    Op op, Stream stream, UnitId unit, BufferId buffer, EventId event, mesh::GroupId group) {
  out->push_back(Action{.op = op,
                        .stream = stream,
                        .group = group,
                        .cause = cause,
                        .unit = base + unit,
                        .buffer = buffer,
                        .event = event,
                        .grads = is_of_gradients(buffer.kind) ? grads : Grads::kAll});
}

BufferId ScheduleState::alloc(BufferKind kind, UnitId unit, Stream stream) {
  ++units[unit].generations[static_cast<size_t>(kind)];
  const BufferId buffer = current(kind, unit);
  push(Op::kAlloc, stream, unit, buffer);
  return buffer;
}

void ScheduleState::free(BufferId buffer, Stream stream) {
  // With a shared comm state the unit may be another root's. Its id does not change, because push()
  // adds the base again.
  push(Op::kFree, stream, buffer.unit - base, buffer);
}

BufferId ScheduleState::take_grad(UnitId unit) {
  const BufferId grad = current(BufferKind::kUnshardedGrad, unit);
  ++units[unit].generations[static_cast<size_t>(BufferKind::kUnshardedGrad)];
  return grad;
}

BufferId ScheduleState::current(BufferKind kind, UnitId unit) const {
  const uint32_t count = units[unit].generations[static_cast<size_t>(kind)];
  // Autograd allocates the unsharded gradient, so its count advances when it is taken.
  const uint32_t generation = kind == BufferKind::kUnshardedGrad ? count : count - 1;
  return BufferId{.kind = kind, .unit = base + unit, .generation = generation};
}

EventId ScheduleState::event_of(UnitId unit, UnitEvent event) const {
  return first_event + 1 + unit * kUnitEventCount + static_cast<uint32_t>(event);
}

EventId ScheduleState::record(Stream stream, UnitId unit, UnitEvent event) {
  const EventId id = event_of(unit, event);
  push(Op::kRecord, stream, unit, {}, id);
  return id;
}

void ScheduleState::wait(Stream stream, UnitId unit, EventId event) {
  push(Op::kStreamWait, stream, unit, {}, event);
}

}  // namespace shardlens::schedule
