#include "core/schedule/ledger.h"

#include <algorithm>

#include "core/schedule/comm_state.h"
#include "core/schedule/schedule_state.h"

namespace shardlens::schedule {
namespace {

constexpr EventId kLargestEvent =
    1U << 24U;  // schedules number events densely; a larger id means a damaged trace

constexpr size_t index(Stream stream) {
  return static_cast<size_t>(stream);
}

}  // namespace

Ledger::Ledger(std::span<const UnitSpec> units, const ScheduleOptions& options)
    : options_(options) {
  for (const UnitSpec& spec : units) {
    Unit unit;
    unit.name = spec.name;
    unit.kept = spec.kept;
    unit.sharded = is_sharded(spec, options);
    unit.flat_gather = unit.sharded && !spec.copy_out;
    unit.copy_in = spec.copy_in || spec.cpu_offload || options.cpu_offload;
    units_.push_back(std::move(unit));
  }
}

Result<void> Ledger::broken(const Action& action, const std::string& why) const {
  std::string message = "ledger: " + std::string(name_of(action.op));
  if (action.buffer.kind != BufferKind::kNone) {
    message += " of " + std::string(name_of(action.buffer.kind)) + " #" +
               std::to_string(action.buffer.generation);
  }
  message += " on " + std::string(name_of(action.stream));
  if (action.unit < units_.size()) {
    message += " for unit '" + units_[action.unit].name + "'";
  }
  if (action.event != kNoEvent) {
    message += ", event " + std::to_string(action.event);
  }
  return Result<void>::error(message + ": " + why);
}

bool Ledger::sees(Stream stream, Stream of, uint64_t position) const {
  return clocks_[index(stream)][index(of)] >= position;
}

uint64_t Ledger::tick(Stream stream) {
  return ++clocks_[index(stream)][index(stream)];
}

void Ledger::use(Buffer& buffer, Stream stream, bool writes) {
  const uint64_t now = tick(stream);
  buffer.used[index(stream)] = now;
  if (writes) {
    buffer.written = true;
    buffer.writer = stream;
    buffer.written_at = now;
  }
}

std::string Ledger::unreadable(const Buffer& buffer, BufferKind kind, Stream stream) const {
  const std::string name(name_of(kind));
  if (!buffer.live) {
    return "there is no " + name;
  }
  if (!buffer.written) {
    return name + " was not written";
  }
  if (!sees(stream, buffer.writer, buffer.written_at)) {
    return "it has not waited for " + std::string(name_of(buffer.writer)) + ", which wrote " + name;
  }
  return {};
}

Ledger::Buffer& Ledger::buffer_of(const Action& action) {
  return units_[action.buffer.unit].buffers[static_cast<size_t>(action.buffer.kind)];
}

Result<void> Ledger::allocate(const Action& action) {
  if (action.buffer.kind == BufferKind::kUnshardedGrad) {
    return broken(action, "autograd allocates it");
  }
  Buffer& buffer = buffer_of(action);
  if (buffer.live) {
    return broken(action, "it is allocated already");
  }
  if (action.buffer.generation != buffer.generations) {
    return broken(action, "generation " + std::to_string(buffer.generations) + " comes next");
  }
  const bool unsharded =
      action.buffer.kind == BufferKind::kUnsharded || action.buffer.kind == BufferKind::kGathered;
  if (unsharded && units_[action.unit].flat_gather) {
    while (!frees_.empty() && sees(action.stream, Stream::kCompute, frees_.front())) {
      frees_.pop_front();
    }
    const auto pending = static_cast<uint32_t>(frees_.size());
    peak_pending_frees_ = std::max(peak_pending_frees_, pending);
    // FSDP1 waits for one free per unshard, so more frees may be pending if several units are freed
    // at once.
    if (options_.limit_all_gathers && options_.dialect == plan::Dialect::kFsdp2 &&
        pending >= CommState::kLimit) {
      return broken(action, std::to_string(pending) + " frees are pending, the limit is " +
                                std::to_string(CommState::kLimit));
    }
  }
  buffer = Buffer{.live = true, .generations = buffer.generations + 1};
  return {};
}

Result<void> Ledger::give_back(const Action& action) {
  Unit& unit = units_[action.buffer.unit];
  Buffer& buffer = buffer_of(action);
  if (action.buffer.kind == BufferKind::kUnshardedGrad) {
    if (action.buffer.generation != buffer.generations) {
      return broken(action, "generation " + std::to_string(buffer.generations) + " is current");
    }
    ++buffer.generations;
  } else if (!buffer.live || action.buffer.generation + 1 != buffer.generations) {
    return broken(action, "it is not allocated");
  }
  if (action.buffer.kind == BufferKind::kUnsharded && unit.full) {
    return broken(action, "the parameters are still full");
  }
  for (int stream = 0; stream < kStreamCount; ++stream) {
    if (!sees(action.stream, static_cast<Stream>(stream), buffer.used[stream])) {
      return broken(action, "it has not waited for " +
                                std::string(name_of(static_cast<Stream>(stream))) +
                                ", which uses it");
    }
  }
  buffer.live = buffer.written = false;
  buffer.used = {};
  if (action.buffer.kind == BufferKind::kUnsharded) {
    frees_.push_back(tick(Stream::kCompute));
  }
  return {};
}

Result<void> Ledger::gather(const Action& action) {
  Unit& unit = units_[action.unit];
  Buffer& target = buffer_of(action);
  if (!target.live) {
    return broken(action, "its buffer is not allocated");
  }
  if (unit.copy_in) {
    if (const std::string why = unreadable(target, action.buffer.kind, action.stream);
        !why.empty()) {
      return broken(action, why);
    }
  } else if (unit.kept != mesh::kNoGroup && action.group == unit.kept) {
    Buffer& sub = unit.buffers[static_cast<size_t>(BufferKind::kSubShard)];
    if (const std::string why = unreadable(sub, BufferKind::kSubShard, action.stream);
        !why.empty()) {
      return broken(action, why);
    }
    use(sub, action.stream, /*writes=*/false);
  }
  use(target, action.stream, /*writes=*/true);
  unit.gathered_at = target.written_at;
  unit.gather_pending = true;
  ++in_flight_;
  peak_in_flight_ = std::max(peak_in_flight_, in_flight_);
  return {};
}

Result<void> Ledger::use_full(const Action& action) {
  Unit& unit = units_[action.unit];
  const Buffer& buffer = unit.buffers[static_cast<size_t>(BufferKind::kUnsharded)];
  if (unit.sharded || unit.copy_in) {
    if (!buffer.live || !buffer.written) {
      return broken(action, "the unit is not unsharded");
    }
    if (options_.dialect == plan::Dialect::kFsdp2 &&
        !sees(Stream::kCompute, buffer.writer, buffer.written_at)) {
      return broken(action, "compute has not waited for the all-gather");
    }
  }
  unit.full = true;
  tick(Stream::kCompute);
  return {};
}

// An op that reads buffer `source` and writes the action's buffer, both of the same unit.
Result<void> Ledger::write_from(const Action& action, BufferKind source) {
  Unit& unit = units_[action.unit];
  Buffer& target = buffer_of(action);
  if (!target.live) {
    return broken(action, "its buffer is not allocated");
  }
  Buffer& from = unit.buffers[static_cast<size_t>(source)];
  if (source == BufferKind::kUnshardedGrad) {  // made by autograd on compute
    from.used[index(action.stream)] = clocks_[index(action.stream)][index(action.stream)] + 1;
  } else if (source != BufferKind::kNone) {
    if (const std::string why = unreadable(from, source, action.stream); !why.empty()) {
      return broken(action, why);
    }
    from.used[index(action.stream)] = clocks_[index(action.stream)][index(action.stream)] + 1;
  }
  use(target, action.stream, /*writes=*/true);
  return {};
}

// Handles kReduceScatter, kAllReduce, kStoreGrad, kToHost and kStep.
Result<void> Ledger::reduce(const Action& action) {
  Unit& unit = units_[action.unit];
  Buffer& buffer = buffer_of(action);
  if (action.op == Op::kReduceScatter) {
    const bool copied = unit.buffers[static_cast<size_t>(BufferKind::kReduceInput)].live;
    return write_from(action, copied ? BufferKind::kReduceInput : BufferKind::kUnshardedGrad);
  }
  if (action.buffer.kind != BufferKind::kUnshardedGrad) {
    if (const std::string why = unreadable(buffer, action.buffer.kind, action.stream);
        !why.empty()) {
      return broken(action, why);
    }
  } else if (action.buffer.generation != buffer.generations) {
    return broken(action, "generation " + std::to_string(buffer.generations) + " is current");
  }
  use(buffer, action.stream, /*writes=*/action.op == Op::kAllReduce);
  return {};
}

Result<void> Ledger::wait_for(const Action& action) {
  if (action.event >= events_.size() || !recorded_[action.event]) {
    return broken(action, "the event was never recorded");
  }
  const Clock& seen = events_[action.event];
  const auto merge = [&seen](Clock& clock) {
    for (size_t i = 0; i < clock.size(); ++i) {
      clock[i] = std::max(clock[i], seen[i]);
    }
  };
  if (action.op == Op::kHostWait) {  // all later work, on any stream, is after the event
    std::ranges::for_each(clocks_, merge);
  } else {
    merge(clocks_[index(action.stream)]);
  }
  settle_gathers();
  return {};
}

void Ledger::settle_gathers() {
  for (Unit& unit : units_) {
    if (unit.gather_pending && sees(Stream::kCompute, Stream::kAllGather, unit.gathered_at)) {
      unit.gather_pending = false;
      --in_flight_;
    }
  }
}

Result<void> Ledger::consume(const Action& action) {
  const bool event_op =
      action.op == Op::kRecord || action.op == Op::kStreamWait || action.op == Op::kHostWait;
  if (!event_op && action.unit >= units_.size()) {
    return broken(action, "there is no unit " + std::to_string(action.unit));
  }
  const bool names_buffer = action.op != Op::kUseFull && action.op != Op::kUseShard;
  if (!event_op && names_buffer &&
      (action.buffer.kind == BufferKind::kNone || action.buffer.unit >= units_.size())) {
    return broken(action, "the action has no buffer");
  }
  switch (action.op) {
    case Op::kAlloc:
      return allocate(action);
    case Op::kFree:
      return give_back(action);
    case Op::kCopyIn:
    case Op::kToDevice:
      return write_from(action, BufferKind::kNone);
    case Op::kAllGather:
      return gather(action);
    case Op::kCopyOut:
      return write_from(action, action.buffer.kind == BufferKind::kSubShard
                                    ? BufferKind::kUnsharded
                                    : BufferKind::kGathered);
    case Op::kUseFull:
      return use_full(action);
    case Op::kUseShard:
      units_[action.unit].full = false;
      tick(Stream::kCompute);
      return {};
    case Op::kReduceCopyIn:
      return write_from(action, action.buffer.kind == BufferKind::kReduceOutput
                                    ? BufferKind::kReduceInput
                                    : BufferKind::kUnshardedGrad);
    case Op::kReduceScatter:
    case Op::kAllReduce:
    case Op::kStoreGrad:
    case Op::kToHost:
    case Op::kStep:
      return reduce(action);
    case Op::kRecord:
      if (action.event > kLargestEvent) {
        return broken(action, "there is no such event");
      }
      if (action.event >= events_.size()) {
        events_.resize(action.event + 1);
        recorded_.resize(action.event + 1, false);
      }
      events_[action.event] = clocks_[index(action.stream)];
      recorded_[action.event] = true;
      return {};
    case Op::kStreamWait:
    case Op::kHostWait:
      return wait_for(action);
  }
  return broken(action, "there is no such op");
}

Result<void> Ledger::finish() const {
  for (const Unit& unit : units_) {
    if (unit.full) {
      return Result<void>::error("ledger: unit '" + unit.name + "' is still unsharded at the end");
    }
    for (int kind = 0; kind < kBufferKindCount; ++kind) {
      if (unit.buffers[kind].live) {
        return Result<void>::error("ledger: unit '" + unit.name + "' has not freed " +
                                   std::string(name_of(static_cast<BufferKind>(kind))) +
                                   " at the end");
      }
    }
  }
  return {};
}

}  // namespace shardlens::schedule
