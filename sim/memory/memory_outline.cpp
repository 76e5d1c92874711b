#include "sim/memory/memory_outline.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "core/schedule/reads_gradient.h"

namespace shardlens::sim {
namespace {

using schedule::Action;
using schedule::BufferKind;
using schedule::Op;
using schedule::PlannedItem;
using schedule::Stream;

constexpr Stream kAnotherStream = Stream::kAllGather;  // in compute's part, for all others

bool of_gradients(BufferKind kind) {
  return kind == BufferKind::kUnshardedGrad || kind == BufferKind::kReduceInput ||
         kind == BufferKind::kReduceOutput;
}

class Outliner {
 public:
  Outliner(const schedule::PlannedStep& step, size_t operators)
      : step_(step), workload_operators_(static_cast<uint32_t>(operators)) {
    on_compute_.resize(step.unit_names.size());
    out_.items.reserve(step.actions.size());
    out_.operators.reserve(step.order.size());
    for (const schedule::PlannedAction& each : step.actions) {
      if (each.action.op == Op::kHostWait && each.action.cause == schedule::Cause::kLimiter) {
        records_.resize(std::max<size_t>(records_.size(), size_t{each.action.event} + 1), kNever);
        records_[each.action.event] = 0;
      }
    }
  }

  // `positions`: of the items in the order; may be null.
  MemoryOutline run(std::vector<uint32_t>* positions = nullptr) {
    for (size_t at = 0; at < step_.order.size(); ++at) {
      const auto position = static_cast<uint32_t>(at);
      const PlannedItem& item = step_.order[at];
      if (step_.tail > 0 && at == step_.tail) {
        out_.tail = out_.items.size();
        if (out_.microbatches.size() == 3) {
          out_.microbatches.push_back(out_.items.size());
        }
      }
      switch (item.kind) {
        case PlannedItem::Kind::kOperator:
        case PlannedItem::Kind::kCommunication:
          at = operate(at) - 1;
          break;
        case PlannedItem::Kind::kAction:
          act(step_.actions[item.index].action);
          break;
        case PlannedItem::Kind::kHook:
          raise(step_.hooks[item.index].hook);
          break;
        case PlannedItem::Kind::kWait:
          break;
      }
      if (positions != nullptr) {
        positions->resize(out_.items.size(), position);
      }
    }
    return std::move(out_);
  }

 private:
  // Adds the operators and communications from `at` on; returns the index of the first other item.
  size_t operate(size_t at) {
    const auto begin = static_cast<uint32_t>(out_.operators.size());
    if (!open_) {
      out_.items.push_back({.begin = begin});
      open_ = true;
    }
    for (; at < step_.order.size(); ++at) {
      const PlannedItem& item = step_.order[at];
      const bool communicates = item.kind == PlannedItem::Kind::kCommunication;
      if (item.kind == PlannedItem::Kind::kWait) {
        continue;
      }
      if (item.kind != PlannedItem::Kind::kOperator && !communicates) {
        break;
      }
      const uint32_t first = item.index + (communicates ? workload_operators_ : 0);
      const size_t before = out_.operators.size();
      out_.operators.resize(before + item.count);
      std::iota(out_.operators.begin() + static_cast<std::ptrdiff_t>(before), out_.operators.end(),
                first);
    }
    out_.items.back().end = static_cast<uint32_t>(out_.operators.size());
    return at;
  }

  void raise(Hook hook) {
    open_ = false;
    if (hook == Hook::kRootPreForward) {
      out_.microbatches.push_back(out_.items.size());
    } else if (hook == Hook::kBackwardEnd) {
      out_.items.push_back({.kind = MemoryItem::Kind::kBackwardEnd});
    }
  }

  // Points that the limiter waits for, and its waits. A point of an earlier step comes before all
  // of this one's.
  void pass(const Action& action) {
    if (action.event >= records_.size() || records_[action.event] == kNever) {
      return;
    }
    if (action.op == Op::kRecord) {
      records_[action.event] = ++recorded_;
      out_.items.push_back({.kind = MemoryItem::Kind::kRecord});
    } else if (action.op == Op::kHostWait) {
      out_.items.push_back(
          {.kind = MemoryItem::Kind::kPassed, .later = recorded_ - records_[action.event]});
    }
    open_ = false;
  }

  void act(const Action& action) {
    if (action.op == Op::kRecord || action.op == Op::kHostWait) {
      return pass(action);
    }
    if (schedule::reads_gradient(action)) {
      out_.items.push_back({.kind = MemoryItem::Kind::kFlatten, .unit = action.unit});
      open_ = false;
    }
    MemoryItem item{.buffer = action.buffer.kind, .stream = action.stream, .grads = action.grads};
    if (action.op == Op::kStoreGrad || action.op == Op::kStep) {
      item.kind = action.op == Op::kStep ? MemoryItem::Kind::kStep : MemoryItem::Kind::kStore;
      item.unit = action.unit;
    } else if (action.op == Op::kToDevice || action.op == Op::kToHost) {
      item.kind = MemoryItem::Kind::kStage;
      item.unit = action.unit;
      item.compute = action.stream == Stream::kCompute;
    } else if (action.op == Op::kAlloc || action.op == Op::kFree) {
      item.kind = action.op == Op::kAlloc ? MemoryItem::Kind::kAlloc : MemoryItem::Kind::kFree;
      item.unit = action.buffer.unit;
      bool& on_compute = on_compute_.at(item.unit)[static_cast<size_t>(item.buffer)];
      on_compute = action.op == Op::kAlloc ? item.stream == Stream::kCompute : on_compute;
      const bool frees_output = action.op == Op::kFree && item.buffer == BufferKind::kReduceOutput;
      item.compute = on_compute || (of_gradients(item.buffer) && !frees_output);
    } else {
      return;
    }
    open_ = false;
    out_.items.push_back(item);
  }

  const schedule::PlannedStep& step_;
  uint32_t workload_operators_;  // number of the first communication
  MemoryOutline out_;
  // Whether each of a unit's buffers was last allocated on the compute stream.
  std::vector<std::array<bool, schedule::kBufferKindCount>> on_compute_;
  static constexpr uint32_t kNever = 0xffffffffU;
  // By event: number of the last kRecord of an event that the limiter waits for, 0: of an earlier
  // step; kNever: it does not wait for it.
  std::vector<uint32_t> records_;
  uint32_t recorded_ = 0;
  bool open_ = false;  // the last item is kOperators and may get more operators
};

}  // namespace

MemoryOutline memory_outline(const schedule::PlannedStep& step, size_t operators) {
  return Outliner(step, operators).run();
}

std::vector<uint32_t> outline_positions(const schedule::PlannedStep& step) {
  std::vector<uint32_t> out;
  (void)Outliner(step, 0).run(&out);  // numbers make no difference
  return out;
}

MemoryOutline with_microbatches(const MemoryOutline& two, size_t microbatches) {
  using Kind = MemoryItem::Kind;
  const size_t second = two.microbatches[1], length = two.tail - second;
  const auto operators_from = [&two](size_t item) {
    const auto first =
        std::find_if(two.items.begin() + static_cast<std::ptrdiff_t>(item), two.items.end(),
                     [](const MemoryItem& each) { return each.kind == Kind::kOperators; });
    return first == two.items.end() ? two.operators.size() : size_t{first->begin};
  };
  const size_t first = operators_from(second), last = operators_from(two.tail);
  MemoryOutline out;
  out.items.reserve(two.items.size() + microbatches * length);
  out.operators.reserve(two.operators.size() + microbatches * (last - first));
  const auto add = [&](size_t begin, size_t end, size_t operators_begin, size_t operators_end) {
    const size_t operators = out.operators.size();  // those of the items begin here
    for (size_t at = begin; at < end; ++at) {
      MemoryItem& item = out.items.emplace_back(two.items[at]);
      if (item.kind == Kind::kOperators) {
        item.begin = static_cast<uint32_t>(item.begin - operators_begin + operators);
        item.end = static_cast<uint32_t>(item.end - operators_begin + operators);
      }
    }
    const auto from = two.operators.begin();
    out.operators.insert(out.operators.end(), from + static_cast<std::ptrdiff_t>(operators_begin),
                         from + static_cast<std::ptrdiff_t>(operators_end));
  };
  add(0, second, 0, first);
  out.microbatches = {two.microbatches[0]};
  for (size_t more = 1; more < microbatches; ++more) {
    out.microbatches.push_back(out.items.size());
    add(second, two.tail, first, last);
  }
  if (microbatches > 1) {
    out.tail = out.items.size();
  }
  if (microbatches == 3) {
    out.microbatches.push_back(out.tail);
  }
  add(two.tail, two.items.size(), last, two.operators.size());
  return out;
}

MemoryOutline compute_part(const MemoryOutline& outline) {
  MemoryOutline out;
  out.operators = outline.operators;
  size_t microbatch = 0;
  for (size_t at = 0; at < outline.items.size(); ++at) {
    if (microbatch < outline.microbatches.size() && outline.microbatches[microbatch] == at) {
      out.microbatches.push_back(out.items.size());
      ++microbatch;
    }
    if (outline.items[at].compute) {
      MemoryItem& item = out.items.emplace_back(outline.items[at]);
      item.stream = item.stream == Stream::kCompute ? item.stream : kAnotherStream;
    }
  }
  return out;
}

bool same_item(const MemoryOutline& outline, size_t at, size_t before) {
  const MemoryItem &a = outline.items[at], &b = outline.items[before];
  if (a.kind != b.kind || a.buffer != b.buffer || a.stream != b.stream || a.unit != b.unit ||
      a.grads != b.grads || a.later != b.later || a.end - a.begin != b.end - b.begin) {
    return false;
  }
  const auto of = outline.operators.begin();
  return std::equal(of + a.begin, of + a.end, of + b.begin);
}

}  // namespace shardlens::sim
