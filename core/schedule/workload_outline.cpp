#include "core/schedule/workload_outline.h"

#include <numeric>
#include <utility>

namespace shardlens::schedule {
namespace {

using plan::WorkloadItem;

class Outliner {
 public:
  explicit Outliner(const plan::Workload& workload) : workload_(workload) {
    out_.first_backward.assign(workload.operators.size() + 1, 0);
    out_.recomputed_before.assign(workload.operators.size(), WorkloadOutline::kNone);
    out_.items = workload.order.size();
  }

  WorkloadOutline run() {
    for (const WorkloadItem& item : workload_.order) {
      item.kind == WorkloadItem::Kind::kOperator ? operate(item) : raise(item);
    }
    std::partial_sum(out_.first_backward.begin(), out_.first_backward.end(),
                     out_.first_backward.begin());
    out_.backward.resize(differentiated_.size());
    std::vector<uint32_t> next(out_.first_backward.begin(), out_.first_backward.end() - 1);
    for (const auto& [forward, index] : differentiated_) {
      out_.backward[next[forward]++] = index;
    }
    return std::move(out_);
  }

 private:
  void operate(const WorkloadItem& item) {
    const plan::Operator& op = workload_.operators[item.index];
    const bool differentiates = op.phase == plan::Phase::kBackward && op.forward >= 0 &&
                                static_cast<size_t>(op.forward) < workload_.operators.size();
    switch (op.phase) {
      case plan::Phase::kForward:
      case plan::Phase::kLoss:
        if (in_forward_) {
          run(item.index, op.unit);
        }
        return;
      case plan::Phase::kRecompute:
        again_.push_back(item);
        return;
      case plan::Phase::kOptimizer:
        out_.optimizer.push_back(item.index);
        return;
      case plan::Phase::kBackward:
        break;
    }
    if (differentiates) {
      const auto forward = static_cast<uint32_t>(op.forward);
      ++out_.first_backward[forward + 1];
      differentiated_.emplace_back(forward, item.index);
    }
    if (!again_.empty() && op.forward >= 0) {
      out_.recomputed_before[static_cast<uint32_t>(op.forward)] =
          static_cast<uint32_t>(out_.recomputed.size());
      out_.recomputed.push_back(std::exchange(again_, {}));
    }
  }

  void run(uint32_t index, UnitId unit) {
    if (!out_.forward.empty()) {
      WorkloadOutline::Forward& last = out_.forward.back();
      if (last.kind == WorkloadItem::Kind::kOperator && last.unit == unit &&
          last.index + last.count == index) {
        ++last.count;
        return;
      }
    }
    out_.forward.push_back({WorkloadItem::Kind::kOperator, index, unit});
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

  const plan::Workload& workload_;
  WorkloadOutline out_;
  std::vector<std::pair<uint32_t, uint32_t>> differentiated_;  // forward and backward operator
  std::vector<WorkloadItem> again_;
  bool in_forward_ = true;
};

}  // namespace

WorkloadOutline workload_outline(const plan::Workload& workload) {
  return Outliner(workload).run();
}

}  // namespace shardlens::schedule
