#include "sim/memory/memory_replay.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace shardlens::sim {
namespace {

using schedule::BufferKind;
using schedule::Stream;

// Whether microbatch `of` has the same items as the previous one, followed only by items that
// allocate nothing.
bool repeats(const MemoryOutline& outline, size_t of) {
  const size_t begin = outline.microbatches[of], length = begin - outline.microbatches[of - 1];
  const size_t end =
      of + 1 < outline.microbatches.size() ? outline.microbatches[of + 1] : outline.items.size();
  for (size_t at = begin; at < end; ++at) {
    if (at - begin < length ? !same_item(outline, at, at - length)
                            : concerns_buffer(outline.items[at])) {
      return false;
    }
  }
  return true;
}

// Whether the unit has gradients of its own, which are not views of a bucket.
bool has_gradients(const plan::Unit& unit) {
  return !unit.parameters.empty() &&
         !(unit.api == plan::Api::kReplicate && unit.gradient_as_bucket_view);
}

// Bytes of norms and biases, for which no operator has the size of the gradient.
Bytes bytes_of_vectors(const plan::ResolvedPlan& plan, UnitId unit) {
  int64_t numel = 0;
  for (const uint32_t parameter : plan.units[unit].parameters) {
    const bool vector = plan.tree.parameters[parameter].shape.size() == 1;
    numel += vector ? plan.local_numel(parameter) : 0;
  }
  return numel * size_of(plan.param_dtype(unit));
}

}  // namespace

StepMemory MemoryReplay::run(const MemoryInputs& inputs, const MemoryOptions& options) {
  stop_at_ = -1;
  keeps_history_ = options.keep_history;
  history_.clear();
  begin(inputs, options, Part::kAll);
  replay(inputs, options, nullptr);
  out_.fits = !failed_;
  StepMemory memory = out_;
  keeps_history_ = false;
  if (options.list_alive) {
    // A second replay up to the peak: live allocations are not recorded during the first one.
    stop_at_ = peak_at_;
    begin(inputs, options, Part::kAll);
    replay(inputs, options, nullptr);
    list_alive(inputs);
    memory.alive = std::move(out_.alive);
  }
  return memory;
}

void MemoryReplay::begin(const MemoryInputs& inputs, const MemoryOptions& options, Part part) {
  part_ = part;
  allocator_.reset(options.capacity);
  operators_ = inputs.operators;
  begin_units(inputs, options);
  if (part != Part::kOthers) {
    saved_.assign(operators_.size(), kNone);
    remade_.assign(operators_.size(), kNone);
    users_left_.assign(operators_.size(), 0);
    std::array<Block, kHanded> none{};
    none.fill(kNone);
    handed_.assign(operators_.size(), none);
  }
  input_ = output_ = handed_on_again_ = kNone;
  holders_.clear();
  by_category_ = {};
  requested_ = 0;
  allocations_ = peak_at_ = 0;
  rising_ = failed_ = stopped_ = false;
  delays_ = options.delays_reuse && inputs.plan.plan.dialect == plan::Dialect::kFsdp1;
  recorded_ = 0;
  out_ = {};
}

void MemoryReplay::begin_units(const MemoryInputs& inputs, const MemoryOptions& options) {
  const plan::ResolvedPlan& plan = inputs.plan;
  units_.assign(plan.units.size(), {});
  for (UnitId id = 0; id < units_.size(); ++id) {
    Unit& unit = units_[id];
    unit.buffers.fill(kNone);
    const plan::UnitSize& size = inputs.sizes[id];
    const Bytes param = size_of(plan.param_dtype(id)), reduce = size_of(plan.reduce_dtype(id));
    const Bytes master = size_of(plan.master_dtype(id));
    const auto bytes = [&unit](BufferKind kind) -> Bytes& {
      return unit.bytes[static_cast<size_t>(kind)];
    };
    bytes(BufferKind::kUnsharded) = bytes(BufferKind::kGathered) = size.unsharded;
    if (const plan::Reshard& after = plan.units[id].reshard_after_forward;
        after.kind == plan::Reshard::Kind::kSubMesh) {
      bytes(BufferKind::kSubShard) = size.unsharded / after.ranks;
    }
    bytes(BufferKind::kReduceInput) = size.reduced * reduce;
    bytes(BufferKind::kReduceOutput) = size.reduced_shard * reduce;
    unit.gradient_bytes = size.reduced_shard * master;
    unit.unsharded_gradient_bytes = has_gradients(plan.units[id]) ? size.reduced * param : 0;
    unit.casts = reduce != master;
    unit.staged_bytes = plan.casts_parameters(id) ? size.sharded : 0;
    if (options.keeps_last_gradient && plan.plan.layout == plan::Layout::kPerParameter &&
        unit.unsharded_gradient_bytes > 0) {
      const uint32_t last = plan.units[id].parameters.back();
      unit.last_gradient_bytes = plan.local_numel(last) * param;
    }
    unit.other_gradient_bytes = unit.unsharded_gradient_bytes;
  }
  for (const plan::Operator& op : inputs.workload.in_backward) {
    units_[op.unit].step_bytes += op.saved;
  }
  if (part_ == Part::kOthers) {
    return;  // operators are not replayed
  }
  for (const OperatorMemory& op : operators_) {
    Bytes& others = units_[op.unit].other_gradient_bytes;
    units_[op.unit].has_norms |= op.of_norm;
    if (op.gradient == kRest) {
      others = std::min(others, bytes_of_vectors(plan, op.unit));
    } else if (op.gradient > 0) {
      others = std::max<Bytes>(0, others - op.gradient);
    }
  }
}

void MemoryReplay::replay(const MemoryInputs& inputs,
                          const MemoryOptions& options,
                          ComputeMemory* notes) {
  const MemoryOutline& outline = inputs.outline;
  highest_ = 0;
  hold_state(inputs, options);
  least_large_ = least_small_ = std::numeric_limits<Bytes>::max();
  if (keeps_history_) {
    note_history(0, kNoOperator);
  }
  if (notes != nullptr) {
    notes->points.reserve(outline.items.size());
    notes->unchanged.assign(outline.microbatches.size(), false);
  }
  size_t microbatch = 0;
  for (size_t at = 0; at < outline.items.size() && !failed_ && !stopped_; ++at) {
    if (microbatch < outline.microbatches.size() && at == outline.microbatches[microbatch]) {
      const size_t first = microbatch;
      const bool unchanged = begins_as_before(outline, microbatch);
      const size_t next = begin_microbatch(outline, options, unchanged, microbatch);
      if (notes != nullptr) {
        note_passed(outline, first, next, *notes);
        std::fill(notes->unchanged.begin() + static_cast<std::ptrdiff_t>(first),
                  notes->unchanged.begin() + static_cast<std::ptrdiff_t>(microbatch), unchanged);
      }
      at = next;
      if (at == outline.items.size()) {
        break;
      }
    }
    const MemoryItem& item = outline.items[at];
    const bool source =
        item.kind == MemoryItem::Kind::kStore && units_[item.unit].buffer(item.buffer) < kElsewhere;
    most_ = allocator_.allocated();
    take(item, outline);
    if (keeps_history_) {
      note_history(static_cast<uint32_t>(at), kNoOperator);
    }
    if (notes != nullptr) {
      notes->points.push_back({most_, allocator_.allocated(), source});
    }
  }
  note_peak();
}

// See [Note: Microbatches]. Returns the item to continue with; `microbatch` becomes the next one to
// begin.
size_t MemoryReplay::begin_microbatch(const MemoryOutline& outline,
                                      const MemoryOptions& options,
                                      bool unchanged,
                                      size_t& microbatch) {
  if (options.more_microbatches && microbatch > 1) {
    out_.alike = unchanged || (microbatch > 2 && out_.alike);
  }
  while (unchanged && !options.keep_history && microbatch < outline.microbatches.size() &&
         repeats(outline, microbatch)) {
    ++microbatch;
  }
  return microbatch < outline.microbatches.size() ? outline.microbatches[microbatch++]
                                                  : outline.items.size();
}

MemoryReplay::Block MemoryReplay::hold(
    Bytes bytes, Stream stream, MemoryCategory category, UnitId unit, What what, uint32_t op) {
  if (bytes == 0 || failed_ || stopped_) {
    return kNone;
  }
  if (part_ != Part::kAll && (stream == Stream::kCompute) != (part_ == Part::kCompute)) {
    return kElsewhere;
  }
  const auto block = allocator_.allocate(bytes, static_cast<uint32_t>(stream));
  if (!block) {
    failed_ = true;
    return kNone;
  }
  if (*block >= holders_.size()) {
    holders_.resize(allocator_.blocks());
  }
  holders_[*block] = {bytes, unit, op, category, what, true};
  if (part_ != Part::kAll) {
    Bytes& least = bytes <= CachingAllocator::kSmallSize ? least_small_ : least_large_;
    least = std::min(least, bytes);
    most_ = std::max(most_, allocator_.allocated());
    return *block;
  }
  ++allocations_;
  by_category_[static_cast<size_t>(category)] += allocator_.size(*block);
  requested_ += bytes;
  out_.peak_requested = std::max(out_.peak_requested, requested_);
  if (keeps_history_ && allocator_.allocated() > highest_) {
    highest_ = allocator_.allocated();
    highest_by_category_ = by_category_;
  }
  out_.peak_reserved = std::max(out_.peak_reserved, allocator_.reserved());
  if (allocator_.allocated() > out_.peak_allocated) {
    out_.peak_allocated = allocator_.allocated();
    peak_at_ = allocations_;
    rising_ = true;
  }
  stopped_ = allocations_ == stop_at_;
  return *block;
}

// Records the categories at the peak; called before memory decreases or changes its category.
void MemoryReplay::note_peak() {
  if (std::exchange(rising_, false)) {
    out_.at_peak = by_category_;
  }
}

void MemoryReplay::drop(Block& block, bool later) {
  if (block == kNone || stopped_) {
    return;
  }
  if (block == kElsewhere) {
    block = kNone;
    return;
  }
  Holder& holder = holders_[block];
  if (part_ == Part::kAll) {
    note_peak();
    by_category_[static_cast<size_t>(holder.category)] -= allocator_.size(block);
    requested_ -= holder.requested;
  }
  holder.alive = false;
  if (later) {
    allocator_.retire(std::exchange(block, kNone), recorded_);
  } else {
    allocator_.free(std::exchange(block, kNone));
  }
}

void MemoryReplay::take(const MemoryItem& item, const MemoryOutline& outline) {
  switch (item.kind) {
    case MemoryItem::Kind::kOperators:
      for (uint32_t i = item.begin; i < item.end && !failed_ && !stopped_; ++i) {
        operate(outline.operators[i]);
        if (keeps_history_) {
          note_history(0, i);
        }
      }
      return;
    case MemoryItem::Kind::kBackwardEnd:
      drop(output_);
      drop(input_);
      return;
    case MemoryItem::Kind::kAlloc:
      return allocate(item);
    case MemoryItem::Kind::kFree:
      return release(item);
    case MemoryItem::Kind::kFlatten:
      return flatten_gradient(item.unit);
    case MemoryItem::Kind::kStage:
      return stage(item);
    case MemoryItem::Kind::kStep:
      return step(item);
    case MemoryItem::Kind::kStore:
      return store(item);
    case MemoryItem::Kind::kRecord:
      ++recorded_;
      return;
    case MemoryItem::Kind::kPassed:
      // What was freed before the n-th kRecord has a stamp below n.
      if (recorded_ > item.later) {
        allocator_.reclaim(recorded_ - item.later - 1);
      }
      return;
  }
}

void MemoryReplay::operate(uint32_t index) {
  using Kind = OperatorMemory::Kind;
  const OperatorMemory& op = operators_[index];
  if (op.kind == Kind::kOptimizer) {
    hand_on(index, MemoryCategory::kOptimizer);  // what foreach keeps; updates are in place
    return free_after(op);
  }
  if (op.kind == Kind::kRecompute) {
    return recompute(index);
  }
  drop(handed_on_again_);
  if (op.kind == Kind::kForward) {
    users_left_[index] = op.forward < 0 ? op.users : 0;
    if (users_left_[index] > 0) {
      saved_[index] = hold(op.saved, Stream::kCompute, MemoryCategory::kActivations, op.unit,
                           What::kSaved, index);
    }
  } else {
    return differentiate(index);
  }
  work(index);
  if (op.in_place) {
    return free_after(op);
  }
  if (op.hands_on) {
    Block before = output_;
    output_ = hold(op.written, Stream::kCompute, MemoryCategory::kActivations, op.unit,
                   What::kHandedOn, index);
    drop(before);
  }
  drop(input_);
  std::swap(input_, output_);
  hand_on(index, MemoryCategory::kActivations);
  free_after(op);
}

// What an operator needs only while it runs.
void MemoryReplay::work(uint32_t index) {
  const OperatorMemory& op = operators_[index];
  Block scratch = hold(op.scratch, Stream::kCompute, MemoryCategory::kActivations, op.unit,
                       What::kHandedOn, index);
  drop(scratch);
}

void MemoryReplay::hand_on(uint32_t index, MemoryCategory category) {
  const OperatorMemory& op = operators_[index];
  for (size_t part = 0; part < kHanded; ++part) {
    if (op.handed[part] > 0) {
      handed_[index][part] =
          hold(op.handed[part], Stream::kCompute, category, op.unit, What::kHandedOn, index);
    }
  }
}

void MemoryReplay::free_after(const OperatorMemory& op) {
  for (uint32_t i = 0; i < op.end_count; ++i) {
    drop(handed_[op.ends[i].op][op.ends[i].part]);
  }
}

void MemoryReplay::differentiate(uint32_t index) {
  const OperatorMemory& op = operators_[index];
  if (op.makes_gradient) {
    add_gradient(op);
  }
  work(index);
  hand_on(index, MemoryCategory::kActivations);
  if (op.forward >= 0) {
    const auto forward = static_cast<size_t>(op.forward);
    if (--users_left_[forward] == 0) {
      drop(saved_[forward]);
      drop(remade_[forward]);
    }
  }
  drop(input_);  // forward's last output
  free_after(op);
}

// If the unit's gradients are already in one tensor, the new ones are added to it in place.
void MemoryReplay::add_gradient(const OperatorMemory& op) {
  Unit& unit = units_[op.unit];
  if (unit.buffer(BufferKind::kUnshardedGrad) != kNone) {
    return;
  }
  const auto piece = [&](Bytes bytes) {
    bytes = std::min(bytes, unit.unsharded_gradient_bytes - unit.gradient_so_far);
    const Block block = hold(bytes, Stream::kCompute, MemoryCategory::kGradients, op.unit,
                             What::kUnshardedGradient);
    if (block != kNone) {
      unit.pieces.push_back(block);
      unit.gradient_so_far += bytes;
    }
  };
  if (!unit.has_other_gradients && (op.of_norm || !unit.has_norms)) {
    unit.has_other_gradients = true;
    piece(unit.other_gradient_bytes);
  }
  piece(op.gradient);
}

// See [Note: Gradients].
void MemoryReplay::flatten_gradient(UnitId id) {
  if (id >= units_.size()) {
    return;  // a bucket
  }
  Unit& unit = units_[id];
  if (unit.pieces.empty() || unit.buffer(BufferKind::kReduceInput) != kNone) {
    return;
  }
  unit.buffer(BufferKind::kUnshardedGrad) =
      hold(unit.unsharded_gradient_bytes, Stream::kCompute, MemoryCategory::kGradients, id,
           What::kUnshardedGradient);
  release({.kind = MemoryItem::Kind::kFree, .unit = id});
}

void MemoryReplay::release(const MemoryItem& item) {
  Unit& unit = units_[item.unit];
  if (item.buffer == BufferKind::kUnshardedGrad || item.buffer == BufferKind::kNone) {
    for (Block& piece : unit.pieces) {
      drop(piece);
    }
    if (unit.last_gradient_bytes > 0 && !unit.pieces.empty() &&
        unit.buffer(BufferKind::kReduceInput) != kNone) {
      unit.last_gradient = hold(unit.last_gradient_bytes, Stream::kCompute,
                                MemoryCategory::kGradients, item.unit, What::kUnshardedGradient);
    }
    unit.pieces.clear();
    unit.gradient_so_far = 0;
    unit.has_other_gradients = false;
  }
  if (item.buffer != BufferKind::kNone) {
    drop(unit.buffer(item.buffer),
         delays_ && item.stream != unit.allocated_on[static_cast<size_t>(item.buffer)]);
  }
}

// When an operator runs again, at most its checkpoint's input has been kept; the rest of what it
// saves is allocated again. The incoming gradient stays allocated in the meantime.
void MemoryReplay::recompute(uint32_t index) {
  const OperatorMemory& op = operators_[index];
  const auto forward = static_cast<size_t>(op.forward);
  remade_[forward] = hold(op.saved, Stream::kCompute, MemoryCategory::kActivations, op.unit,
                          What::kSavedAgain, index);
  free_after(op);
  work(index);
  hand_on(index, MemoryCategory::kActivations);
  if (op.in_place) {
    return;
  }
  Block before = handed_on_again_;
  handed_on_again_ = op.hands_on ? hold(op.written, Stream::kCompute, MemoryCategory::kActivations,
                                        op.unit, What::kHandedOn, index)
                                 : kNone;
  drop(before);
}

void MemoryReplay::allocate(const MemoryItem& item) {
  Unit& unit = units_[item.unit];
  Block& slot = unit.buffer(item.buffer);
  drop(slot);
  unit.allocated_on[static_cast<size_t>(item.buffer)] = item.stream;
  const auto take = [&](MemoryCategory category, What what) {
    slot =
        hold(unit.bytes[static_cast<size_t>(item.buffer)], item.stream, category, item.unit, what);
  };
  switch (item.buffer) {
    case BufferKind::kUnsharded:
      return take(MemoryCategory::kUnsharded, What::kUnsharded);
    case BufferKind::kGathered:
      return take(MemoryCategory::kCommunication, What::kGathered);
    case BufferKind::kSubShard:
      return take(MemoryCategory::kUnsharded, What::kSubShard);
    case BufferKind::kReduceInput:
      return take(MemoryCategory::kCommunication, What::kReduceInput);
    case BufferKind::kReduceOutput:
      return take(MemoryCategory::kCommunication, What::kReduceOutput);
    case BufferKind::kUnshardedGrad:
    case BufferKind::kNone:
      return;
  }
}

void MemoryReplay::store(const MemoryItem& item) {
  Unit& unit = units_[item.unit];
  drop(unit.last_gradient);
  if (unit.gradient != kNone) {
    return;  // the new gradient is added to it
  }
  Block& source = unit.buffer(item.buffer);
  if (unit.casts || source == kNone) {
    unit.gradient = hold(unit.gradient_bytes, item.stream, MemoryCategory::kGradients, item.unit,
                         What::kGradient);
    return;
  }
  // The reduction's output becomes the gradient: only its category changes.
  if (source == kElsewhere) {
    unit.gradient = std::exchange(source, kNone);
    return;
  }
  note_peak();
  Holder& holder = holders_[source];
  const Bytes size = allocator_.size(source);
  by_category_[static_cast<size_t>(holder.category)] -= size;
  holder.category = MemoryCategory::kGradients;
  holder.what = What::kGradient;
  by_category_[static_cast<size_t>(holder.category)] += size;
  unit.gradient = std::exchange(source, kNone);
}

}  // namespace shardlens::sim
