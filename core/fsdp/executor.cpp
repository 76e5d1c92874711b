#include "core/fsdp/executor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "core/base/error.h"
#include "core/dist/world.h"

namespace shardlens::fsdp {

using schedule::Action;
using schedule::Axis;
using schedule::BufferKind;
using schedule::Op;
using schedule::Stream;

Executor::Executor(std::vector<FlatParamHandle*> handles, dist::World& world, Recorder* recorder)
    : units_(handles.size()), world_(world), recorder_(recorder) {
  for (size_t i = 0; i < handles.size(); ++i) {
    units_[i].handle = handles[i];
  }
}

dist::Communicator& Executor::communicator(Stream stream, Axis axis) const {
  if (axis == Axis::kReplicate || (axis == Axis::kNone && stream == Stream::kAllReduce)) {
    return world_.replicate();
  }
  return world_.shard();
}

dist::Purpose Executor::purpose(UnitId unit) const {
  return {unit, units_[unit].handle->unit(), sequence_};
}

void Executor::submitted(Stream stream, dist::Communicator& on, dist::CompletionPtr completion) {
  last_[static_cast<size_t>(stream)] = {std::move(completion), &on};
}

uint32_t Executor::record(const Action& action) {
  ++sequence_;
  if (recorder_ != nullptr) {
    recorder_->action(sequence_, action);
  }
  return sequence_;
}

void Executor::execute(const Action& action, bool edges) {
  record(action);
  switch (action.op) {
    case Op::kRecord:
      return record_event(action);
    case Op::kStreamWait:
    case Op::kHostWait:
      return wait_event(action);
    default:
      break;
  }
  Unit& unit = units_.at(action.unit);
  SHARDLENS_CHECK(unit.handle != nullptr, "an action on a unit without parameters");
  switch (action.op) {
    case Op::kAlloc:
      return allocate(action, unit);
    case Op::kFree:
      return release(action, unit);
    case Op::kCopyIn:
      unit.handle->copy_in();
      unit.copied_in = true;
      return;
    case Op::kAllGather:
      return all_gather(action, unit);
    case Op::kUseFull:
      return unit.handle->use_full(edges);
    case Op::kUseShard:
      return unit.handle->use_shard();
    case Op::kReduceCopyIn:
      return reduce_copy_in(unit);
    case Op::kReduceScatter:
      return reduce_scatter(action, unit);
    case Op::kAllReduce:
      return all_reduce(action, unit);
    case Op::kStoreGrad:
      return store_grad(action, unit);
    case Op::kCopyOut:
    case Op::kToHost:
    case Op::kToDevice:
    case Op::kRecord:
    case Op::kStreamWait:
    case Op::kHostWait:
      break;
  }
  throw RuntimeFault("internal error: the engine was given the action " +
                     std::string(name_of(action.op)));
}

void Executor::allocate(const Action& action, Unit& unit) {
  const FlatParamHandle& handle = *unit.handle;
  switch (action.buffer.kind) {
    case BufferKind::kUnsharded:
      return unit.handle->allocate();
    case BufferKind::kReduceInput:
      unit.reduce_input = at::empty({handle.layout().padded_numel()},
                                    at::TensorOptions().dtype(handle.reduce_dtype()));
      return;
    case BufferKind::kReduceOutput:
      unit.reduce_output = at::empty({handle.layout().shard_numel()},
                                     at::TensorOptions().dtype(handle.reduce_dtype()));
      return;
    default:
      throw RuntimeFault("internal error: the engine cannot allocate a " +
                         std::string(name_of(action.buffer.kind)));
  }
}

void Executor::release(const Action& action, Unit& unit) {
  switch (action.buffer.kind) {
    case BufferKind::kUnsharded:
      unit.handle->free();
      unit.copied_in = false;
      return;
    case BufferKind::kUnshardedGrad:
      unit.unsharded_grad = at::Tensor();
      return;
    case BufferKind::kReduceInput:
      unit.reduce_input = at::Tensor();
      unit.accumulates = false;
      return;
    case BufferKind::kReduceOutput:
      unit.reduce_output = at::Tensor();
      return;
    default:
      throw RuntimeFault("internal error: the engine cannot free a " +
                         std::string(name_of(action.buffer.kind)));
  }
}

void Executor::all_gather(const Action& action, Unit& unit) {
  const RangeScope range(recorder_, Range::kAllGather, action.unit);
  dist::Communicator& on = communicator(action.stream, action.axis);
  submitted(action.stream, on,
            on.all_gather(unit.handle->gather_output(), unit.handle->gather_input(unit.copied_in),
                          purpose(action.unit)));
}

void Executor::reduce_copy_in(Unit& unit) {
  const at::NoGradGuard no_grad;
  const at::Tensor gradient = unit.handle->take_unsharded_grad();
  if (unit.accumulates) {
    unit.reduce_input.add_(gradient);
  } else {
    unit.reduce_input.copy_(gradient);
  }
  unit.accumulates = true;
}

// The input of a reduction: what kReduceCopyIn wrote, or the gradient as autograd left it.
at::Tensor& Executor::gradient_of(const Action& action, Unit& unit) {
  if (unit.reduce_input.defined()) {
    return unit.reduce_input;
  }
  if (!unit.unsharded_grad.defined()) {
    unit.unsharded_grad = unit.handle->take_unsharded_grad();
  }
  SHARDLENS_CHECK(unit.unsharded_grad.defined(),
                  "reduction of a unit without gradient: " + unit.handle->unit() + " by " +
                      std::string(name_of(action.op)));
  return unit.unsharded_grad;
}

void Executor::reduce_scatter(const Action& action, Unit& unit) {
  dist::Communicator& on = communicator(action.stream, action.axis);
  submitted(action.stream, on,
            on.reduce_scatter(unit.reduce_output, gradient_of(action, unit),
                              dist::ReduceOp::kAverage, purpose(action.unit)));
}

void Executor::all_reduce(const Action& action, Unit& unit) {
  dist::Communicator& on = communicator(action.stream, action.axis);
  const at::Tensor& tensor = action.buffer.kind == BufferKind::kReduceOutput
                                 ? unit.reduce_output
                                 : gradient_of(action, unit);
  submitted(action.stream, on,
            on.all_reduce(tensor, dist::ReduceOp::kAverage, purpose(action.unit)));
}

void Executor::store_grad(const Action& action, Unit& unit) {
  const at::Tensor reduced = action.buffer.kind == BufferKind::kReduceOutput
                                 ? unit.reduce_output
                                 : gradient_of(action, unit);
  FlatParamHandle* handle = unit.handle;
  handle->adopt_user_zero_grad();
  if (action.stream == Stream::kCompute) {
    handle->store_grad(reduced);
    return;
  }
  dist::Communicator& on = communicator(action.stream, action.axis);
  submitted(action.stream, on,
            on.run([handle, reduced] { handle->store_grad(reduced); }, purpose(action.unit)));
}

void Executor::record_event(const Action& action) {
  if (action.event >= events_.size()) {
    events_.resize(action.event + 1);
  }
  events_[action.event] = last_[static_cast<size_t>(action.stream)];
}

void Executor::wait_event(const Action& action) {
  const Last& event = events_.at(action.event);
  if (event.completion == nullptr) {
    return;  // recorded on the host's own thread: complete by program order
  }
  if (action.op == Op::kHostWait || action.stream == Stream::kCompute ||
      action.stream == Stream::kCopyIn) {
    event.on->wait(event.completion);
    return;
  }
  dist::Communicator& waiter = communicator(action.stream, Axis::kNone);
  if (&waiter != event.on) {  // the same thread is FIFO and needs no wait
    submitted(action.stream, waiter,
              waiter.run([on = event.on, completion = event.completion] { on->wait(completion); },
                         {kNoUnit, "an event"}));
  }
}

void Executor::drain() noexcept {
  for (Last& last : last_) {
    if (last.completion != nullptr) {
      try {
        last.on->wait(last.completion);
      } catch (const std::exception&) {  // the failure that led here has been reported already
      }
      last = {};
    }
  }
  for (Unit& unit : units_) {
    unit.unsharded_grad = unit.reduce_input = unit.reduce_output = at::Tensor();
    unit.copied_in = unit.accumulates = false;
    if (unit.handle != nullptr && unit.handle->has_unsharded_grad()) {
      static_cast<void>(unit.handle->take_unsharded_grad());
    }
  }
}

}  // namespace shardlens::fsdp
