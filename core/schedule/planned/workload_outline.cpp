#include "core/schedule/planned/workload_outline.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

namespace shardlens::schedule {
namespace {

using plan::WorkloadItem;

class Outliner {
 public:
  explicit Outliner(const plan::Workload& workload) : workload_(workload) {
    out_.first_backward.assign(plan::numbers_in(workload) + 1, 0);
    out_.recomputed_before.assign(plan::numbers_in(workload), WorkloadOutline::kNone);
    out_.items = workload.order.size();
  }

  WorkloadOutline run() {
    for (const WorkloadItem& item : workload_.order) {
      switch (item.kind) {
        case WorkloadItem::Kind::kHook:
          raise(item);
          break;
        case WorkloadItem::Kind::kOperator: {
          const plan::Operator& op = workload_.operators[item.index];
          const bool known =
              op.forward >= 0 && static_cast<size_t>(op.forward) < workload_.operators.size();
          place(item, op.phase, op.unit,
                known ? static_cast<uint32_t>(op.forward) : WorkloadOutline::kNone);
          break;
        }
        case WorkloadItem::Kind::kCommunication: {
          const plan::Communication& each = workload_.communications[item.index];
          place(item, each.phase, each.unit,
                each.forward ? plan::number_of(workload_, *each.forward) : WorkloadOutline::kNone);
          break;
        }
      }
    }
    std::partial_sum(out_.first_backward.begin(), out_.first_backward.end(),
                     out_.first_backward.begin());
    out_.backward.resize(differentiated_.size());
    std::vector<uint32_t> next(out_.first_backward.begin(), out_.first_backward.end() - 1);
    for (const auto& [forward, index] : differentiated_) {
      out_.backward[next[forward]++] = index;
    }
    chain();
    return std::move(out_);
  }

 private:
  // `forward`: number of the item that this one differentiates or repeats, or kNone.
  void place(const WorkloadItem& item, plan::Phase phase, UnitId unit, uint32_t forward) {
    const uint32_t number = plan::number_of(workload_, item);
    switch (phase) {
      case plan::Phase::kForward:
      case plan::Phase::kLoss:
        if (in_forward_) {
          run(item.kind, number, unit);
        }
        return;
      case plan::Phase::kRecompute:
        again_.push_back(item);
        return;
      case plan::Phase::kOptimizer:
        out_.optimizer.push_back(number);
        return;
      case plan::Phase::kBackward:
        break;
    }
    if (forward == WorkloadOutline::kNone) {
      if (item.kind == WorkloadItem::Kind::kCommunication) {
        attach(number);
      }
      return;
    }
    for (const uint32_t each : attached_) {
      differentiate(forward, each);
    }
    attached_.clear();
    differentiate(forward, number);
    if (again_.empty()) {
      return;
    }
    uint32_t& before = out_.recomputed_before[forward];
    if (before == WorkloadOutline::kNone) {
      before = static_cast<uint32_t>(out_.recomputed.size());
      out_.recomputed.emplace_back();
    }
    // In a recorded pass one operator has the backward of all that ran before it in its unit, which
    // may have several checkpoints.
    std::vector<WorkloadItem>& items = out_.recomputed[before];
    items.insert(items.end(), again_.begin(), again_.end());
    again_.clear();
  }

  // Communication of backward without a forward item: it runs with the item before it or, if
  // there is none or a recomputation comes in between, with the next one.
  void attach(uint32_t number) {
    if (differentiated_.empty() || !again_.empty()) {
      attached_.push_back(number);
    } else {
      differentiate(differentiated_.back().first, number);
    }
  }

  void differentiate(uint32_t forward, uint32_t number) {
    ++out_.first_backward[forward + 1];
    differentiated_.emplace_back(forward, number);
  }

  void run(WorkloadItem::Kind kind, uint32_t number, UnitId unit) {
    if (kind == WorkloadItem::Kind::kOperator && !out_.forward.empty()) {
      WorkloadOutline::Forward& last = out_.forward.back();
      if (last.kind == kind && last.unit == unit && last.index + last.count == number) {
        ++last.count;
        return;
      }
    }
    out_.forward.push_back({kind, number, unit});
  }

  void raise(const WorkloadItem& item) {
    const HookEvent& event = workload_.hooks[item.index];
    if (event.recompute) {
      again_.push_back(item);
    }
    in_forward_ =
        in_forward_ && event.hook != Hook::kPreBackward && event.hook != Hook::kGradsReady;
    if (in_forward_) {
      out_.forward.push_back({item.kind, item.index, event.unit});
    }
  }

  void chain() {
    const size_t count = out_.recomputed_before.size();
    out_.chained_to.resize(count);
    out_.chain_begin.resize(count);
    for (uint32_t i = 0; i < count; ++i) {
      const auto own =
          std::span(out_.backward)
              .subspan(out_.first_backward[i], out_.first_backward[i + 1] - out_.first_backward[i]);
      const bool one = std::ranges::adjacent_find(
                           own, [](uint32_t a, uint32_t b) { return a + 1 != b; }) == own.end() &&
                       (own.empty() || own.back() < workload_.operators.size());
      out_.chained_to[i] = one ? i : i + 1;
      out_.chain_begin[i] = own.empty() ? WorkloadOutline::kNone : own.front();
      if (!one || i == 0 || out_.recomputed_before[i - 1] != WorkloadOutline::kNone) {
        continue;
      }
      const uint32_t next = out_.chain_begin[i - 1];
      if (own.empty() || next == WorkloadOutline::kNone || next == own.back() + 1) {
        out_.chained_to[i] = std::min(i, out_.chained_to[i - 1]);
        out_.chain_begin[i] = own.empty() ? next : own.front();
      }
    }
  }

  const plan::Workload& workload_;
  WorkloadOutline out_;
  std::vector<std::pair<uint32_t, uint32_t>> differentiated_;  // numbers in forward and backward
  std::vector<uint32_t> attached_;  // communications of backward that run with the next item
  std::vector<WorkloadItem> again_;
  bool in_forward_ = true;
};

}  // namespace

WorkloadOutline workload_outline(const plan::Workload& workload) {
  return Outliner(workload).run();
}

}  // namespace shardlens::schedule
