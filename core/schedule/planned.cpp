#include "core/schedule/planned.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/error.h"
#include "core/schedule/autograd_queue.h"

namespace shardlens::schedule {
namespace {

using Node = AutogradQueue::Node;

// Runs steps of a workload through a schedule, with the model of autograd's queue in place of a
// backward.
//
// [Note: What the graph holds] One node per forward operator, each depending on the one before it
// and on the views of its unit; one node per set of views, made when kUseFull comes; one
// accumulator per unit. Operators within a unit need no finer graph: what decides is which unit's
// nodes are newer.
class StepRunner {
 public:
  StepRunner(const plan::Workload& workload, const plan::ResolvedPlan& plan)
      : workload_(workload), plan_(plan), schedule_(make(plan)), accumulators_(plan.units.size()) {
    for (const plan::WorkloadItem& item : workload.order) {
      if (item.kind == plan::WorkloadItem::Kind::kHook && workload.hooks[item.index].recompute) {
        recomputed_.push_back(workload.hooks[item.index]);
      }
    }
  }

  void run(int accumulate, bool sync_every_microbatch) {
    for (int microbatch = 0; microbatch < accumulate; ++microbatch) {
      set_sync(sync_every_microbatch || microbatch + 1 == accumulate);
      begin_graph();
      forward();
      if (last_ != AutogradQueue::kNone) {
        graph_.backward(last_, [this](AutogradQueue::Tag tag) { happens(tag); });
        raise({.hook = Hook::kBackwardEnd, .unit = 0});
      }
    }
    raise({.hook = Hook::kOptimizerDone, .unit = 0});
  }

  [[nodiscard]] PlannedStep take() { return std::exchange(planned_, {}); }

 private:
  static Schedule make(const plan::ResolvedPlan& plan) {
    Result<Schedule> schedule = Schedule::make(unit_specs(plan), schedule_options(plan));
    if (!schedule.ok()) {
      throw RuntimeFault(schedule.message());
    }
    return std::move(schedule.value());
  }

  void set_sync(bool sync) {
    Setting setting;
    setting.kind = Setting::Kind::kGradientSync;
    setting.flag = sync;
    if (const Result<void> done = schedule_.set(0, setting, Recurse::kYes); !done.ok()) {
      throw RuntimeFault(done.message());
    }
  }

  void begin_graph() {
    graph_.clear();
    tags_.clear();
    last_ = AutogradQueue::kNone;
    views_.assign(plan_.units.size(), AutogradQueue::kNone);
    for (UnitId unit = 0; unit < plan_.units.size(); ++unit) {
      accumulators_[unit] = graph_.add_accumulator();
      graph_.at(accumulators_[unit], tag({.hook = Hook::kGradsReady, .unit = unit}));
    }
    if (plan_.plan.views == plan::Views::kFrozen) {
      for (UnitId unit = 0; unit < plan_.units.size(); ++unit) {
        views_[unit] = graph_.add(std::array{accumulators_[unit]});
      }
    }
  }

  AutogradQueue::Tag tag(const HookEvent& event) {
    tags_.push_back(event);
    return static_cast<AutogradQueue::Tag>(tags_.size() - 1);
  }

  void apply(UnitId unit) { last_ = graph_.add(std::array{last_, views_.at(unit)}); }

  // The forward part of the workload: up to its first hook of a backward.
  void forward() {
    in_forward_ = true;
    std::vector<size_t> begun;  // graph sizes at the pre-forwards that are open
    for (const plan::WorkloadItem& item : workload_.order) {
      if (item.kind == plan::WorkloadItem::Kind::kOperator) {
        const plan::Operator& op = workload_.operators[item.index];
        if (op.phase == plan::Phase::kForward || op.phase == plan::Phase::kLoss) {
          apply(op.unit);
        }
        continue;
      }
      const HookEvent& event = workload_.hooks[item.index];
      if (event.hook == Hook::kPreBackward || event.hook == Hook::kGradsReady) {
        break;
      }
      raise(event);
      if (event.hook == Hook::kPreForward) {
        begun.push_back(graph_.size());
      } else if (event.hook == Hook::kPostForward) {
        if (!begun.empty() && begun.back() == graph_.size()) {
          apply(event.unit);  // a unit that is listed without operators still has an output
        }
        if (!begun.empty()) {
          begun.pop_back();
        }
        if (event.grad_mode && last_ != AutogradQueue::kNone) {
          graph_.before(last_, tag({.hook = Hook::kPreBackward,
                                    .unit = event.unit,
                                    .invocation = event.invocation}));
        }
      }
    }
    in_forward_ = false;
  }

  void happens(AutogradQueue::Tag tag) {
    const HookEvent event = tags_[tag];
    if (event.hook == Hook::kGradsReady && plan_.units[event.unit].parameters.empty()) {
      return;
    }
    raise(event);
    if (event.hook == Hook::kPreBackward) {
      for (const HookEvent& again : recomputed_) {
        if (again.unit == event.unit && again.invocation == event.invocation) {
          raise(again);
        }
      }
    }
  }

  void raise(const HookEvent& event) {
    actions_.clear();
    if (const Result<void> done = schedule_.on(event, actions_); !done.ok()) {
      throw RuntimeFault(done.message());
    }
    planned_.hooks.push_back(event);
    for (const Action& action : actions_) {
      planned_.actions.push_back(
          {static_cast<uint32_t>(planned_.actions.size() + 1), event, action});
      if (action.op == Op::kUseFull && in_forward_ && event.grad_mode &&
          plan_.plan.views == plan::Views::kFresh) {
        views_[action.unit] = graph_.add(std::array{accumulators_[action.unit]});
      }
    }
  }

  const plan::Workload& workload_;
  const plan::ResolvedPlan& plan_;
  Schedule schedule_;
  AutogradQueue graph_;
  std::vector<HookEvent> tags_;
  std::vector<HookEvent> recomputed_;
  std::vector<Node> accumulators_, views_;  // per unit
  Node last_ = AutogradQueue::kNone;
  bool in_forward_ = false;
  ActionList actions_;
  PlannedStep planned_;
};

}  // namespace

PlannedStep planned_step(const plan::Workload& workload,
                         const plan::ResolvedPlan& plan,
                         int step,
                         int accumulate,
                         bool sync_every_microbatch) {
  StepRunner runner(workload, plan);
  for (int done = 1; done < step; ++done) {
    runner.run(accumulate, sync_every_microbatch);
    static_cast<void>(runner.take());
  }
  runner.run(accumulate, sync_every_microbatch);
  return runner.take();
}

}  // namespace shardlens::schedule
