#include "sim/memory/memory_replay.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "sim/memory/passed_points.h"

namespace shardlens::sim {
namespace {

using schedule::BufferKind;

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

// Where to continue after a last microbatch that was passed over: at the operators of an optimizer
// that hand tensors on (foreach), otherwise at the end.
size_t after_last(const MemoryOutline& outline, std::span<const OperatorMemory> operators) {
  const size_t last = outline.microbatches.size() - 1, begin = outline.microbatches[last];
  const auto hands_on = [&](const MemoryItem& item) {
    const auto of = outline.operators.begin();
    return std::any_of(of + item.begin, of + item.end, [operators](uint32_t index) {
      return std::ranges::any_of(operators[index].handed, [](Bytes bytes) { return bytes > 0; });
    });
  };
  const size_t tail = std::min(2 * begin - outline.microbatches[last - 1], outline.items.size());
  return std::any_of(outline.items.begin() + static_cast<std::ptrdiff_t>(tail), outline.items.end(),
                     hands_on)
             ? tail
             : outline.items.size();
}

}  // namespace

StepMemory MemoryReplay::run(const MemoryInputs& inputs, const MemoryOptions& options) {
  stop_at_ = -1;
  begin_history(options.keep_history);
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
    list_alive(inputs.workload);
    memory.alive = std::move(out_.alive);
  }
  return memory;
}

void MemoryReplay::replay(const MemoryInputs& inputs,
                          const MemoryOptions& options,
                          ComputeMemory* notes) {
  const MemoryOutline& outline = inputs.outline;
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
  for (size_t at = 0; at < outline.items.size() && !ended(); ++at) {
    if (microbatch < outline.microbatches.size() && at == outline.microbatches[microbatch]) {
      const size_t first = microbatch;
      const bool unchanged = begins_as_before(outline, microbatch);
      size_t next = begin_microbatch(outline, options, unchanged, microbatch);
      if (next == outline.items.size()) {
        next = after_last(outline, inputs.operators);
      }
      if (notes != nullptr) {
        const Bytes now = allocator_.allocated();
        note_passed(outline, first, next, {now, now}, notes->points);
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

// Whether a microbatch, from the third on, begins with the same memory as the previous one.
bool MemoryReplay::begins_as_before(const MemoryOutline& outline, size_t microbatch) {
  if (microbatch == 0 || outline.microbatches.size() < 3) {
    return false;
  }
  take_snapshot(now_);
  const bool unchanged = microbatch > 1 && now_ == before_;
  std::swap(before_, now_);
  return unchanged;
}

void MemoryReplay::take(const MemoryItem& item, const MemoryOutline& outline) {
  switch (item.kind) {
    case MemoryItem::Kind::kOperators:
      for (uint32_t i = item.begin; i < item.end && !ended(); ++i) {
        operate(outline.operators[i]);
        if (keeps_history_) {
          note_history(0, i);
        }
      }
      return;
    case MemoryItem::Kind::kBackwardEnd:
      return end_backward();
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

}  // namespace shardlens::sim
