#include "core/fsdp/run/executor.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>

#include "core/base/error.h"
#include "core/dist/world.h"

namespace shardlens::fsdp {

using schedule::Action;
using schedule::BufferKind;
using schedule::Op;
using schedule::Stream;

namespace {

dist::ReduceOp op_of(bool average) {
  return average ? dist::ReduceOp::kAverage : dist::ReduceOp::kSum;
}

}  // namespace

Executor::Executor(std::vector<FlatParamHandle*> handles, dist::World& world, Recorder* recorder)
    : units_(handles.size()), world_(world), recorder_(recorder) {
  for (size_t i = 0; i < handles.size(); ++i) {
    units_[i].handle = handles[i];
  }
  if (const c10::Device device = world.world().device(); !device.is_cpu()) {
    device_.emplace(device, world.world().timeout());
  }
}

dist::Communicator& Executor::communicator(const Action& action) const {
  if (action.group != mesh::kNoGroup) {
    return *groups_.at(action.group);
  }
  return *(action.stream == Stream::kAllReduce       ? groups_[plan::kReplicateGroup]
           : action.stream == Stream::kReduceScatter ? groups_[reduce_scatters_]
                                                     : groups_[plan::kShardGroup]);
}

dist::Purpose Executor::purpose(UnitId unit) const {
  return {unit, units_[unit].handle->unit(), sequence_};
}

void Executor::submitted(Stream stream, dist::Communicator& on, dist::CompletionPtr completion) {
  last_[static_cast<size_t>(stream)] = {std::move(completion), &on};
}

void Executor::use_groups(std::span<const mesh::Group> groups) {
  groups_.clear();
  for (const mesh::Group& group : groups) {
    groups_.push_back(&world_.of(group));
  }
  const auto own = std::ranges::find_if(groups, &mesh::Group::separate);
  reduce_scatters_ =
      own == groups.end() ? plan::kShardGroup : static_cast<mesh::GroupId>(own - groups.begin());
}

uint32_t Executor::record(const Action& action) {
  ++sequence_;
  if (recorder_ != nullptr) {
    recorder_->action(sequence_, action);
  }
  return sequence_;
}

void Executor::enter() {
  if (device_) {
    device_->enter();
  }
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
  c10::OptionalStreamGuard on_stream;
  if (device_) {
    on_stream.reset_stream(device_->of(action.stream));
    if (action.op != Op::kFree) {
      device_->issued(action.stream);
    }
  }
  switch (action.op) {
    case Op::kAlloc:
      return allocate(action, unit);
    case Op::kFree:
      return release(action, unit);
    case Op::kToDevice:
      copies_from_host_ = true;
      [[fallthrough]];
    case Op::kCopyIn:
      return copy_in(action, unit);
    case Op::kAllGather:
      return all_gather(action, unit);
    case Op::kCopyOut:
      return copy_out(action, unit);
    case Op::kUseFull:
      return unit.handle->use_full(edges);
    case Op::kUseShard:
      return unit.handle->use_shard();
    case Op::kReduceCopyIn:
      return reduce_copy_in(action, unit);
    case Op::kReduceScatter:
      return reduce_scatter(action, unit);
    case Op::kAllReduce:
      return all_reduce(action, unit);
    case Op::kStoreGrad:
      return store_grad(action, unit);
    case Op::kToHost:
      return to_host(action, unit);
    case Op::kStep:
      return step(action, unit);
    case Op::kRecord:
    case Op::kStreamWait:
    case Op::kHostWait:
      break;
  }
  throw RuntimeFault("internal error: the engine was given the action " +
                     std::string(name_of(action.op)));
}

void Executor::allocate(const Action& action, Unit& unit) {
  FlatParamHandle& handle = *unit.handle;
  UnshardedGradients& gradients = handle.unsharded_gradients();
  const auto reduced = at::TensorOptions(handle.reduce_dtype()).device(handle.device());
  unit.allocated_on[static_cast<size_t>(action.buffer.kind)] = action.stream;
  switch (action.buffer.kind) {
    case BufferKind::kUnsharded:
      return handle.storage().allocate();
    case BufferKind::kGathered:
      unit.copied_out.reset();
      return handle.storage().allocate_gathered();
    case BufferKind::kSubShard:
      return handle.storage().allocate_sub_shard();
    case BufferKind::kReduceInput:
      unit.reduce_input = at::empty({gradients.choose()}, reduced);
      return;
    case BufferKind::kReduceOutput:
      if (!unit.reduce_input.defined() && !unit.unsharded_grad.defined()) {
        // The reduce-scatter will take the gradients.
        gradients.choose();
      }
      unit.carried = gradients.carried();
      unit.reduce_output = at::empty({gradients.numel() / handle.layout().ranks()}, reduced);
      unit.partial = false;
      return;
    default:
      throw RuntimeFault("internal error: the engine cannot allocate a " +
                         std::string(name_of(action.buffer.kind)));
  }
}

void Executor::free_finished() {
  if (device_) {
    device_->let_go();
  }
}

void Executor::retire(const Action& action, const Unit& unit, std::shared_ptr<void> memory) {
  if (device_) {
    device_->retire(std::move(memory), unit.allocated_on[static_cast<size_t>(action.buffer.kind)],
                    action.stream,
                    action.buffer.kind == BufferKind::kGathered ? unit.copied_out : std::nullopt);
  }
}

void Executor::release(const Action& action, Unit& unit) {
  const auto give_back = [&](at::Tensor& tensor) {
    if (!tensor.defined()) {
      return;
    }
    retire(action, unit, std::make_shared<at::Tensor>(std::exchange(tensor, at::Tensor())));
  };
  switch (action.buffer.kind) {
    case BufferKind::kUnsharded:
      retire(action, unit, std::make_shared<c10::DataPtr>(unit.handle->storage().free()));
      unit.copied_in = false;
      return;
    case BufferKind::kGathered:
      return retire(action, unit,
                    std::make_shared<at::Tensor>(unit.handle->storage().free_gathered()));
    case BufferKind::kSubShard:
      return retire(action, unit,
                    std::make_shared<at::Tensor>(unit.handle->storage().free_sub_shard()));
    case BufferKind::kUnshardedGrad:
      if (!unit.read_elsewhere.empty()) {
        retire(action, unit,
               std::make_shared<std::vector<at::Tensor>>(std::exchange(unit.read_elsewhere, {})));
      }
      return give_back(unit.unsharded_grad);
    case BufferKind::kReduceInput:
      unit.accumulates = false;
      return give_back(unit.reduce_input);
    case BufferKind::kReduceOutput:
      unit.partial = false;
      return give_back(unit.reduce_output);
    default:
      throw RuntimeFault("internal error: the engine cannot free a " +
                         std::string(name_of(action.buffer.kind)));
  }
}

// An all-gather of parts reads the shard itself.
void Executor::copy_in(const Action& action, Unit& unit) {
  unit.copied_in = true;
  const mesh::GroupId group =
      action.group == mesh::kNoGroup ? mesh::GroupId{plan::kShardGroup} : action.group;
  unit.reads_shard = gathers_parts_ && unit.handle->storage().can_gather_parts() &&
                     groups_.at(group)->gathers_parts();
  if (!unit.reads_shard) {
    unit.handle->storage().copy_in();
  }
}

void Executor::all_gather(const Action& action, Unit& unit) {
  const RangeScope range(recorder_, Range::kAllGather, action.unit);
  dist::Communicator& on = communicator(action);
  UnshardedStorage& storage = unit.handle->storage();
  const bool copied_in = std::exchange(unit.copied_in, false);
  if (copied_in && unit.reads_shard) {
    if (on.gathers_parts()) {
      const auto [shard, parts] = storage.gather_parts_input();
      submitted(action.stream, on,
                on.all_gather_parts(storage.gather_output(), shard, parts, purpose(action.unit)));
      return;
    }
    storage.copy_in();
  }
  const at::Tensor input = storage.gather_input(copied_in);
  submitted(action.stream, on,
            collectives_->all_gather(on, storage.gather_output(), input, purpose(action.unit)));
}

void Executor::copy_out(const Action& action, Unit& unit) {
  if (action.buffer.kind == BufferKind::kSubShard) {
    return unit.handle->storage().fill_sub_shard();
  }
  const RangeScope range(recorder_, Range::kAllGatherCopyOut, action.unit);
  unit.handle->storage().copy_out();
  if (device_) {
    unit.copied_out = device_->now(action.stream);
  }
}

void Executor::reduce_copy_in(const Action& action, Unit& unit) {
  if (device_ && action.stream != Stream::kCompute) {
    const std::vector<at::Tensor>& read = unit.handle->unsharded_gradients().waiting();
    unit.read_elsewhere.insert(unit.read_elsewhere.end(), read.begin(), read.end());
  }
  unit.handle->unsharded_gradients().take_into(unit.reduce_input,
                                               std::exchange(unit.accumulates, true));
}

// The input of a reduction: the result of kReduceCopyIn, or the flattened gradients of autograd.
at::Tensor& Executor::gradient_of(const Action& action, Unit& unit) {
  if (unit.reduce_input.defined()) {
    return unit.reduce_input;
  }
  if (!unit.unsharded_grad.defined()) {
    UnshardedGradients& gradients = unit.handle->unsharded_gradients();
    SHARDLENS_CHECK(!gradients.empty() || gradients.reduces_unused(),
                    "reduction of a unit without gradient: " + unit.handle->unit() + " by " +
                        std::string(name_of(action.op)));
    c10::OptionalStreamGuard on_compute;
    if (device_) {  // the memory of the parameters' gradients belongs to this stream
      on_compute.reset_stream(device_->of(Stream::kCompute));
    }
    unit.unsharded_grad = gradients.take();
    if (device_ && action.stream != Stream::kCompute) {
      device_->order(action.stream, Stream::kCompute);
    }
  }
  return unit.unsharded_grad;
}

// gradient_of(), divided for the first collective.
at::Tensor& Executor::divided_gradient_of(const Action& action, Unit& unit) {
  at::Tensor& gradient = gradient_of(action, unit);
  if (unit.handle->reduction().before != 1) {
    const at::NoGradGuard no_grad;
    gradient.div_(unit.handle->reduction().before);
  }
  return gradient;
}

void Executor::reduce_scatter(const Action& action, Unit& unit) {
  dist::Communicator& on = communicator(action);
  const bool partial = std::exchange(unit.partial, true);
  if (unit.carried != unit.handle->unsharded_gradients().carried()) {
    throw UsageError("unit '" + unit.handle->unit() +
                     "': the microbatches whose gradients are added up before the all-reduce over "
                     "the replicas use different parameters");
  }
  const at::Tensor output = partial ? at::empty_like(unit.reduce_output) : unit.reduce_output;
  if (on.checks_ranks()) {
    on.agree(unit.handle->reduced_parameters());
  }
  submitted(action.stream, on,
            collectives_->reduce_scatter(on, output, divided_gradient_of(action, unit),
                                         op_of(unit.handle->reduction().average_shard),
                                         purpose(action.unit)));
  if (partial) {
    const auto add = [sum = unit.reduce_output, output] {
      const at::NoGradGuard no_grad;
      sum.add_(output);
    };
    submitted(action.stream, on, on.run(add, purpose(action.unit)));
  }
}

void Executor::all_reduce(const Action& action, Unit& unit) {
  dist::Communicator& on = communicator(action);
  const at::Tensor& tensor = action.buffer.kind == BufferKind::kReduceOutput
                                 ? unit.reduce_output
                                 : divided_gradient_of(action, unit);
  submitted(action.stream, on,
            collectives_->all_reduce(on, tensor, op_of(unit.handle->reduction().average_replicate),
                                     purpose(action.unit)));
}

// A gradient that is stored on compute was not in a collective, so it is not divided yet.
at::Tensor& Executor::reduced_gradient(const Action& action, Unit& unit) {
  return action.buffer.kind == BufferKind::kReduceOutput ? unit.reduce_output
         : action.stream == Stream::kCompute             ? divided_gradient_of(action, unit)
                                                         : gradient_of(action, unit);
}

void Executor::store_grad(const Action& action, Unit& unit) {
  const at::Tensor reduced = reduced_gradient(action, unit);
  // The queued work owns the handle: the model may be destroyed before it runs.
  const std::shared_ptr<FlatParamHandle> handle = unit.handle->shared_from_this();
  handle->gradient().adopt();
  const auto store = [handle, reduced, after = unit.handle->reduction().after,
                      carried = handle->unsharded_gradients().carried()] {
    const at::NoGradGuard no_grad;
    if (after != 1) {
      reduced.div_(after);
    }
    handle->gradient().store(reduced, carried);
  };
  if (action.stream == Stream::kCompute) {
    store();
    return;
  }
  dist::Communicator& on = communicator(action);
  submitted(action.stream, on, on.run(store, purpose(action.unit)));
}

void Executor::step(const Action& action, Unit& unit) {
  SHARDLENS_CHECK(step_ != nullptr, "optimizer_in_backward without an optimizer");
  const auto update = [handle = unit.handle->shared_from_this(), step = step_, id = action.unit] {
    const at::NoGradGuard no_grad;
    (*step)(id, *handle);
    handle->gradient().forget();
  };
  if (action.stream == Stream::kCompute) {
    update();
    return;
  }
  dist::Communicator& on = communicator(action);
  submitted(action.stream, on, on.run(update, purpose(action.unit)));
}

// [Note: Gradients on the host] The copy runs on the stream that reduces, from a tensor that the
// schedule keeps until the stream has passed it, to pinned memory. The host adds the copies to the
// gradient after it has waited for the event after them, so it never waits within a backward.
// (PyTorch waits there if the gradient is added to an earlier one.)
void Executor::to_host(const Action& action, Unit& unit) {
  if (!device_) {
    return store_grad(action, unit);  // the gradient is on the host already
  }
  const at::Tensor reduced = reduced_gradient(action, unit);
  if (unit.handle->reduction().after != 1) {
    const at::NoGradGuard no_grad;
    reduced.div_(unit.handle->reduction().after);
  }
  unit.to_host.push_back(
      {unit.handle->gradient().to_host(reduced), unit.handle->unsharded_gradients().carried()});
}

void Executor::store_copied(Unit& unit, schedule::EventId event) {
  std::erase_if(unit.to_host, [&](const Unit::ToHost& copied) {
    if (event != schedule::kNoEvent && copied.event != event) {
      return false;
    }
    unit.handle->gradient().adopt();
    unit.handle->gradient().store(copied.values, copied.carried);
    return true;
  });
}

void Executor::finish_copies(bool all) {
  if (!std::exchange(copies_from_host_, false) || !device_) {
    return;
  }
  if (all) {
    device_->drain();
  } else {
    device_->wait_on_host(Stream::kCopyIn);
  }
}

void Executor::record_event(const Action& action) {
  if (action.unit < units_.size()) {
    for (Unit::ToHost& copied : units_[action.unit].to_host) {
      copied.event = copied.event == schedule::kNoEvent ? action.event : copied.event;
    }
  }
  if (device_) {
    return device_->record(action.event, action.stream);
  }
  if (action.event >= events_.size()) {
    events_.resize(action.event + 1);
  }
  events_[action.event] = last_[static_cast<size_t>(action.stream)];
}

void Executor::wait_event(const Action& action) {
  if (device_ && action.op == Op::kHostWait) {
    device_->host_wait(action.event);
    if (action.unit < units_.size()) {
      store_copied(units_[action.unit], action.event);
    }
    return;
  }
  if (device_) {
    return device_->wait(action.event, action.stream);
  }
  const Last& event = events_.at(action.event);
  if (event.completion == nullptr) {
    return;  // recorded on the host thread: complete by program order
  }
  if (action.op == Op::kHostWait || action.stream == Stream::kCompute ||
      action.stream == Stream::kCopyIn) {
    event.on->wait(event.completion);
    return;
  }
  dist::Communicator& waiter = communicator(action);
  if (&waiter != event.on) {  // requests on the same thread are FIFO and need no wait
    submitted(action.stream, waiter,
              waiter.run([on = event.on, completion = event.completion] { on->wait(completion); },
                         {kNoUnit, "an event"}));
  }
}

void Executor::settle() {
  for (const Stream stream : {Stream::kReduceScatter, Stream::kAllReduce}) {
    const Last& last = last_[static_cast<size_t>(stream)];
    if (device_) {
      device_->order(Stream::kCompute, stream);
    } else if (last.completion != nullptr) {
      last.on->wait(last.completion);
    }
  }
  for (Unit& unit : units_) {
    for (const Unit::ToHost& copied : unit.to_host) {
      device_->host_wait(copied.event);
    }
    store_copied(unit, schedule::kNoEvent);
  }
}

std::vector<bool> Executor::unreduced(UnitId unit) const {
  const Unit& u = units_[unit];
  const UnshardedGradients& gradients = u.handle->unsharded_gradients();
  std::vector<bool> slots(u.handle->slots().size(), false);
  for (size_t i = 0; i < slots.size(); ++i) {
    slots[i] = gradients.waiting()[i].defined() ||
               ((u.accumulates || u.partial) && gradients.carried()[i]);
  }
  return slots;
}

void Executor::forget_unreduced(UnitId unit, const std::vector<size_t>& slots) {
  Unit& u = units_[unit];
  if (slots.empty() || std::ranges::count(unreduced(unit), true) == 0) {
    return;
  }
  settle();
  const at::NoGradGuard no_grad;
  for (const size_t slot : slots) {
    u.handle->unsharded_gradients().zero(slot, u.accumulates ? u.reduce_input : at::Tensor());
    if (u.partial && u.reduce_output.defined()) {
      const auto range = u.handle->gradient().range_of(slot, u.carried);
      u.reduce_output.narrow(0, range.start, range.numel).zero_();
    }
  }
}

void Executor::drain(bool keep) noexcept {
  for (Last& last : last_) {
    if (last.completion != nullptr) {
      try {
        last.on->wait(last.completion);
      } catch (const std::exception&) {  // the original failure has been reported already
      }
      last = {};
    }
  }
  try {
    if (device_) {
      device_->drain();
      for (Unit& unit : units_) {
        store_copied(unit, schedule::kNoEvent);
      }
    }
  } catch (const std::exception&) {  // the original failure has been reported already
  }
  for (Unit& unit : units_) {
    unit.read_elsewhere.clear();
    unit.to_host.clear();
    unit.copied_in = false;
    if (keep) {
      continue;
    }
    unit.unsharded_grad = unit.reduce_input = unit.reduce_output = at::Tensor();
    unit.accumulates = unit.partial = false;
    if (unit.handle != nullptr) {
      unit.handle->unsharded_gradients().clear();
    }
  }
}

}  // namespace shardlens::fsdp
