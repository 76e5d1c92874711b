#include "core/schedule/planned/planned.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/plan/resolve.h"
#include "core/schedule/planned/autograd_queue.h"
#include "core/schedule/planned/copied_microbatches.h"
#include "core/schedule/planned/item_order.h"
#include "core/schedule/planned/operator_runs.h"
#include "core/schedule/planned/planned_buckets.h"
#include "core/schedule/planned/steady_step.h"
#include "core/workload/step_size.h"
#include "core/workload/step_support.h"

namespace shardlens::schedule {
namespace {

using Node = AutogradQueue::Node;

// Runs steps of a workload through a schedule. AutogradQueue determines the order of backward.
//
// [Note: Nodes of the graph] A run is a sequence of forward operators of one unit without a hook in
// between. There is one node per run, which depends on the run before it and on the views of its
// unit; one node per set of views, made at kUseFull; and one accumulator per unit. Operators of a
// run need no nodes of their own: the node of the newer one makes only that of the older one ready,
// which is then the newest.
class StepRunner {
 public:
  StepRunner(const plan::Workload& workload,
             const WorkloadOutline& outline,
             const plan::ResolvedPlan& plan)
      : workload_(workload),
        outline_(outline),
        plan_(plan),
        schedule_(make(plan, plan::is_traced(workload.program))),
        buckets_(plan),
        sharded_(
            std::any_of(plan.units.begin(),
                        plan.units.end(),
                        [](const plan::Unit& unit) { return unit.api == plan::Api::kFullyShard; })),
        accumulators_(plan.units.size()) {
    trained_ = trained_operators(workload, plan);
    for (const HookEvent& event : workload.hooks) {
      if (event.grads == Grads::kLast) {
        last_module_first_ = event.unit;
      }
    }
  }

  StepRunner(const StepRunner&) = delete;  // order_ refers to planned_
  StepRunner& operator=(const StepRunner&) = delete;

  // run() stores its result in this memory, with operators that follow each other as one item.
  void keep_in(PlannedStep storage) {
    order_.merge_operators();
    planned_ = std::move(storage);
    planned_.hooks.clear();
    planned_.actions.clear();
    planned_.order.clear();
    planned_.tail = 0;
  }

  // See [Note: Steady].
  [[nodiscard]] bool is_steady_at_once() const {
    return buckets_.empty() && plan_.plan.dialect == plan::Dialect::kFsdp2;
  }

  // See [Note: Copied microbatches].
  [[nodiscard]] bool copies_microbatches() const {
    return is_steady_at_once() && !program_ends_backward() &&
           std::ranges::all_of(plan_.units, [](const plan::Unit& unit) {
             return unit.reshard_after_backward && unit.requires_all_reduce;
           });
  }

  // `keep`: false to only advance the schedule's state, without a result.
  void run(int accumulate, bool sync_every_microbatch, bool keep) {
    order_.keep(keep);
    if (keep) {
      planned_.order.reserve(2 * outline_.items * static_cast<size_t>(accumulate));
    }
    places_.clear();
    for (int microbatch = 0; microbatch < accumulate; ++microbatch) {
      const bool last = microbatch + 1 == accumulate;
      note_place();
      const bool at_end = plan_.plan.backward_finalization == plan::Finalization::kReduces;
      const bool sync = (last || sync_every_microbatch) && !at_end;
      set(Setting::Kind::kGradientSync, sync);
      order_.reduce_gradients(sync || (last && at_end));
      require(begin_microbatch(schedule_, plan_, last));
      buckets_.begin(sync);
      begin_graph();
      forward();
      if (last_ != AutogradQueue::kNone) {
        graph_.backward(last_, [this](AutogradQueue::Tag tag) { happens(tag); });
        raise_waiting(sync, last);
        order_.wait_for_all();
        raise({.hook = Hook::kBackwardEnd, .unit = 0});
        launch(buckets_.end());
      }
      order_.wait_for_all();
    }
    note_place();
    for (const uint32_t number : outline_.optimizer) {
      order_.add(number);
    }
    order_.wait_for_all();
    raise({.hook = Hook::kOptimizerDone, .unit = 0});
  }

  // The end of a step that is not run, see [Note: Steady].
  void end_step() { raise({.hook = Hook::kOptimizerDone, .unit = 0}); }

  // Where each microbatch begins in the result of the last run(), and what follows the last one.
  [[nodiscard]] const std::vector<PlannedPlace>& places() const { return places_; }

  [[nodiscard]] PlannedStep take() {
    planned_.unit_names = buckets_.names();
    planned_.buckets = buckets_.now();
    return std::move(planned_);
  }

 private:
  // The event of a tag of the graph: a hook, the backward of a run of operators, or `replicated`.
  struct Tag {
    HookEvent hook;
    uint32_t begin = 0, end = 0;              // range in runs_; empty: a hook
    std::optional<uint32_t> replicated = {};  // the gradient of this parameter is complete
  };

  void note_place() {
    places_.push_back({planned_.hooks.size(), planned_.actions.size(), planned_.order.size()});
  }

  void recompute_before(uint32_t number) {
    const uint32_t again = outline_.recomputed_before[number];
    if (again == WorkloadOutline::kNone) {
      return;
    }
    order_.flush();
    for (const plan::WorkloadItem& item : outline_.recomputed[again]) {
      if (item.kind == plan::WorkloadItem::Kind::kHook) {
        order_.flush();
        raise(workload_.hooks[item.index]);
      } else {
        order_.follow(plan::number_of(workload_, item));
      }
    }
    order_.flush();
  }

  static Schedule make(const plan::ResolvedPlan& plan, bool traced) {
    Result<Schedule> schedule = Schedule::make(unit_specs(plan), schedule_options(plan, traced));
    if (!schedule.ok()) {
      throw RuntimeFault(schedule.message());
    }
    return std::move(schedule.value());
  }

  void set(Setting::Kind kind, bool flag) {
    require(schedule_.set(0, {.kind = kind, .flag = flag, .units = {}}, Recurse::kYes));
  }
  [[nodiscard]] bool program_ends_backward() const {
    return plan_.plan.backward_finalization != plan::Finalization::kAutomatic;
  }

  static void require(const Result<void>& done) {
    if (!done.ok()) {
      throw RuntimeFault(done.message());
    }
  }

  void begin_graph() {
    graph_.clear();
    tags_.clear();
    runs_.clear();
    run_open_ = false;
    last_ = AutogradQueue::kNone;
    views_.assign(plan_.units.size(), AutogradQueue::kNone);
    used_.assign(plan_.units.size(), false);
    reduced_at_end_.assign(plan_.units.size(), false);
    waiting_.assign(plan_.units.size(), false);
    replicated_.assign(plan_.tree.parameters.size(), AutogradQueue::kNone);
    for (UnitId unit = 0; unit < plan_.units.size(); ++unit) {
      if (plan_.is_frozen(unit)) {
        continue;
      }
      accumulators_[unit] = graph_.add_accumulator();
      graph_.at(accumulators_[unit],
                tag({.hook = Hook::kGradsReady, .unit = unit, .grads = completed_grads(unit)}));
    }
    if (plan_.plan.views == plan::Views::kFrozen) {
      for (UnitId unit = 0; unit < plan_.units.size(); ++unit) {
        make_views(unit);
      }
    }
  }

  AutogradQueue::Tag tag(const HookEvent& event) {
    tags_.push_back({event});
    return static_cast<AutogradQueue::Tag>(tags_.size() - 1);
  }

  // Adds a node. `uses_views`: it depends on the parameters of its unit, in all groups.
  void apply(UnitId unit, bool uses_views, std::span<const Node> parameters = {}) {
    const UnitId first = unit - plan_.units[unit].group;
    inputs_.assign({last_, uses_views ? views_[first] : AutogradQueue::kNone});
    for (uint32_t group = 1; uses_views && group < plan_.units[first].groups; ++group) {
      inputs_.push_back(views_[first + group]);
    }
    inputs_.insert(inputs_.end(), parameters.begin(), parameters.end());
    last_ = graph_.add(inputs_);
    run_open_ = false;
  }

  // The accumulators of an operator's replicated parameters. Created in reverse order, because the
  // newest of those that become ready runs first.
  std::vector<Node> replicated_by(uint32_t index) {
    std::vector<Node> nodes;
    if (buckets_.empty() || order_.communicates(index)) {
      return nodes;
    }
    const std::vector<uint32_t> parameters = buckets_.parameters_of(workload_.operators[index]);
    for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter) {
      Node& node = replicated_[*parameter];
      if (node == AutogradQueue::kNone) {
        node = graph_.add_accumulator();
        graph_.at(node, tag({}));
        tags_.back().replicated = *parameter;
      }
      nodes.push_back(node);
    }
    return nodes;
  }

  // Operators of one unit. All are in one run, unless parameters are frozen or replicated.
  void apply_all(const WorkloadOutline::Forward& item) {
    if (!trained_.empty() || !buckets_.empty()) {
      for (uint32_t i = 0; i < item.count; ++i) {
        apply(item.unit, item.index + i);
      }
      return;
    }
    order_.add(item.index, item.count);
    if (!run_open_ || run_unit_ != item.unit) {
      apply(item.unit, true);
      open_run(item.unit);
    }
    runs_.add(item.index, item.count);
    tags_[run_tag_].end += item.count;
  }

  // The newest node is that of a run.
  void open_run(UnitId unit) {
    run_open_ = true;
    run_unit_ = unit;
    graph_.at(last_, tag({}));
    tags_.back().begin = tags_.back().end = runs_.size();
    run_tag_ = tags_.size() - 1;
  }

  void apply(UnitId unit, uint32_t index) {
    order_.add(index);
    const bool trains = trained_.empty() || trained_[index];
    if (!trains && last_ == AutogradQueue::kNone) {
      return;  // its result does not require grad
    }
    const std::vector<Node> parameters = trains ? replicated_by(index) : std::vector<Node>();
    // If some parameters are frozen, each operator with trained parameters gets its own node: a
    // unit's gradients are complete at its first operator with trained parameters.
    const bool alone = !parameters.empty() || (trains && !trained_.empty());
    if (!run_open_ || run_unit_ != unit || alone) {
      apply(unit, trains, parameters);
      open_run(unit);
      run_open_ = !alone;
    }
    runs_.add(index, 1);
    ++tags_[run_tag_].end;
  }

  // The forward part of the workload: all up to the first hook of backward.
  void forward() {
    in_forward_ = true;
    std::vector<size_t> begun;  // graph sizes at the pre-forwards of units whose forward runs
    bool of_batch = false;      // nothing in this forward of the root has an output yet
    for (size_t i = 0; i < outline_.forward.size(); ++i) {
      const WorkloadOutline::Forward& item = outline_.forward[i];
      if (item.kind != plan::WorkloadItem::Kind::kHook) {
        apply_all(item);
        of_batch = false;
        continue;
      }
      HookEvent event = workload_.hooks[item.index];
      of_batch =
          (of_batch || event.hook == Hook::kRootPreForward) && event.hook != Hook::kPostForward;
      const bool differentiable = last_ != AutogradQueue::kNone;
      input_requires_grad_ = differentiable && !of_batch && !takes_indices(i);
      if (!trained_.empty()) {
        event.grads =
            event.hook == Hook::kPostForward && !differentiable ? Grads::kNone : Grads::kAll;
      }
      raise(event);
      run_open_ = false;  // a hook, or its counterpart in backward, ends the run
      if (event.hook == Hook::kPreForward) {
        begun.push_back(graph_.size());
        reduced_at_end_[event.unit] = plan_.plan.dialect == plan::Dialect::kFsdp2 &&
                                      !input_requires_grad_ &&
                                      (!used_[event.unit] || reduced_at_end_[event.unit]);
        used_[event.unit] = true;
        if (input_requires_grad_ && has_views(event.unit) && plan_.is_frozen(event.unit)) {
          watch_input(event.unit);
        }
      } else if (event.hook == Hook::kPostForward) {
        if (!begun.empty() && begun.back() == graph_.size() && trained_.empty()) {
          apply(event.unit, true);  // a unit without operators has an output too
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

  // Whether the first operator after item `i` of the forward is an embedding.
  [[nodiscard]] bool takes_indices(size_t i) const {
    const auto first = std::find_if(
        outline_.forward.begin() + static_cast<std::ptrdiff_t>(i), outline_.forward.end(),
        [](const auto& item) { return item.kind == plan::WorkloadItem::Kind::kOperator; });
    return first != outline_.forward.end() &&
           workload_.operators[first->index].kind == plan::OperatorKind::kEmbedding;
  }

  void happens(AutogradQueue::Tag tag) {
    const auto [event, begin, end, replicated] = tags_[tag];
    if (replicated) {
      launch(buckets_.ready(*replicated));
      return;
    }
    if (begin != end) {
      return differentiate(begin, end);
    }
    if (event.hook == Hook::kGradsReady && !has_views(event.unit)) {
      return;
    }
    if (event.hook == Hook::kGradsReady && event.grads != Grads::kLast &&
        reduced_at_end_[event.unit]) {
      waiting_[event.unit] = true;
      return;
    }
    raise(event);
  }

  // The backward of the runs' items from `begin` to `end`. Operators that follow each other are
  // added together.
  void differentiate(uint32_t begin, uint32_t end) {
    const uint32_t first = runs_[begin], last = runs_[end - 1];
    if (runs_.successive(begin, end) && outline_.chained_to[last] <= first) {
      recompute_before(last);
      return order_.add(outline_.chain_begin[last],
                        outline_.first_backward[last + 1] - outline_.first_backward[first]);
    }
    const bool recomputes = !outline_.recomputed.empty();
    for (uint32_t i = end; i-- > begin && (order_.keeps() || recomputes);) {
      recompute_before(runs_[i]);
      const uint32_t* const item = outline_.first_backward.data() + runs_[i];
      for (uint32_t k = item[0]; k < item[1]; ++k) {
        order_.follow(outline_.backward[k]);
      }
    }
    order_.flush();
  }

  // Which gradients the end of the unit's own backward completes.
  [[nodiscard]] Grads completed_grads(UnitId unit) const {
    return unit == last_module_first_ ? Grads::kOthers : Grads::kAll;
  }

  // [Note: Reduced at the end] FSDP2 detects the end of a unit's backward by the gradients of its
  // inputs. If no input requires grad, the post-backward runs in autograd's final callback, in the
  // order of the units, of a unit's groups the last first; in reverse where the program ends it.
  void raise_waiting(bool sync, bool last) {
    if (program_ends_backward() && sync) {
      for (auto unit = static_cast<UnitId>(waiting_.size()); last && unit-- > 0;) {
        if (waiting_[unit]) {
          raise({.hook = Hook::kGradsReady, .unit = unit, .grads = completed_grads(unit)});
        }
      }
      return;
    }
    for (UnitId first = 0; first < waiting_.size(); first += plan_.units[first].groups) {
      for (UnitId unit = first + plan_.units[first].groups; unit-- > first;) {
        if (waiting_[unit]) {
          raise({.hook = Hook::kGradsReady, .unit = unit, .grads = completed_grads(unit)});
        }
      }
    }
  }

  [[nodiscard]] bool has_views(UnitId unit) const {
    return !plan_.units[unit].parameters.empty() && plan_.units[unit].api == plan::Api::kFullyShard;
  }

  // Appends actions of the Reducer. Each launch follows a kGradsReady of its bucket.
  void launch(const ActionList& actions) {
    for (const Action& action : actions) {
      actions_.assign(1, action);
      if (order_.keeps() && action.op == Op::kAllReduce) {
        keep({.hook = Hook::kGradsReady, .unit = action.unit});
      } else if (order_.keeps()) {
        keep_actions(planned_.hooks.back());
      }
    }
  }

  void raise(const HookEvent& event) {
    actions_.clear();
    if (sharded_) {  // otherwise there are only Reducers
      require(schedule_.on(event, actions_));
    }
    if (order_.keeps()) {
      keep(event);
    }
    for (const Action& action : actions_) {
      if (action.op == Op::kUseFull && in_forward_ && event.grad_mode &&
          plan_.plan.views == plan::Views::kFresh) {
        make_views(action.unit);
      }
    }
  }

  void keep(const HookEvent& event) {
    order_.wait_before(event);
    planned_.order.push_back(
        {PlannedItem::Kind::kHook, static_cast<uint32_t>(planned_.hooks.size())});
    planned_.hooks.push_back(event);
    keep_actions(event);
  }

  void keep_actions(const HookEvent& event) {
    auto index = static_cast<uint32_t>(planned_.actions.size());
    for (const Action& action : actions_) {
      planned_.order.push_back({PlannedItem::Kind::kAction, index++});
      planned_.actions.push_back({index, event, action});
    }
  }

  // The backward of a frozen unit ends when the gradients of its inputs are computed. FSDP2 detects
  // this with a node before the unit, FSDP1 with a hook on the output of the previous unit.
  void watch_input(UnitId unit) {
    const AutogradQueue::Tag through =
        tag({.hook = Hook::kGradsReady, .unit = unit, .grads = Grads::kNone});
    if (plan_.plan.dialect == plan::Dialect::kFsdp1) {
      graph_.before(last_, through);
      return;
    }
    last_ = graph_.add(std::array{last_});
    graph_.at(last_, through);
  }

  void make_views(UnitId unit) {
    if (plan_.is_frozen(unit)) {
      return;
    }
    const bool used_before = views_[unit] != AutogradQueue::kNone;
    views_[unit] = graph_.add(std::array{accumulators_[unit]});
    if (used_before && unit == last_module_first_) {
      // See [Note: Gradients of the last module]. The program's calls are in the workload.
      graph_.at(views_[unit],
                tag({.hook = Hook::kGradsReady, .unit = unit, .grads = Grads::kLast}));
      graph_.at(views_[unit], tag({.hook = Hook::kReshard, .unit = unit}));
    } else if (used_before && input_requires_grad_ && plan_.plan.dialect == plan::Dialect::kFsdp2) {
      // Runs before the views of the earlier use: the backward of this use has ended, but the
      // gradients are not complete. Without a gradient of its input FSDP2 does not notice the end.
      graph_.at(views_[unit],
                tag({.hook = Hook::kGradsReady, .unit = unit, .grads = Grads::kNone}));
    }
  }

  const plan::Workload& workload_;
  const WorkloadOutline& outline_;
  const plan::ResolvedPlan& plan_;
  Schedule schedule_;
  PlannedBuckets buckets_;
  bool sharded_;                        // whether any unit is sharded
  UnitId last_module_first_ = kNoUnit;  // the unit of which the workload raises Grads::kLast
  AutogradQueue graph_;
  std::vector<Tag> tags_;
  std::vector<Node> inputs_;  // of the node that is added
  OperatorRuns runs_;         // numbers of the operators of forward
  bool run_open_ = false;     // the newest node is a run that may get more operators
  UnitId run_unit_ = 0;
  size_t run_tag_ = 0;
  std::vector<bool> trained_;  // by number of an operator; empty: no parameter is frozen
  std::vector<Node> accumulators_, views_;             // per unit
  std::vector<bool> used_, reduced_at_end_, waiting_;  // per unit
  std::vector<Node> replicated_;                       // accumulator of each parameter
  Node last_ = AutogradQueue::kNone;
  bool in_forward_ = false;
  bool input_requires_grad_ = false;  // of the unit whose pre-forward is raised
  ActionList actions_;
  PlannedStep planned_;
  ItemOrder order_{workload_, planned_.order};
  std::vector<PlannedPlace> places_;
};

}  // namespace

PlannedStep planned_step(const plan::Workload& workload,
                         const plan::ResolvedPlan& plan,
                         int step,
                         int accumulate,
                         bool sync_every_microbatch) {
  const WorkloadOutline outline = workload_outline(workload);
  StepRunner runner(workload, outline, plan);
  for (int done = 1; done < step; ++done) {
    runner.run(accumulate, sync_every_microbatch, /*keep=*/false);
  }
  runner.run(accumulate, sync_every_microbatch, /*keep=*/true);
  return runner.take();
}

struct SteadySteps::Impl {
  const plan::Workload& workload;
  const WorkloadOutline& outline;
  const plan::ResolvedPlan& plan;
  StepRunner runner;
  bool steady = false;
  std::shared_ptr<TwoMicrobatches> two = nullptr;  // see [Note: Copied microbatches]
};

SteadySteps::SteadySteps(const plan::Workload& workload,
                         const WorkloadOutline& outline,
                         const plan::ResolvedPlan& plan)
    : impl_(new Impl{workload, outline, plan, StepRunner(workload, outline, plan)}) {}

SteadySteps::~SteadySteps() = default;

std::shared_ptr<PlannedStep> SteadySteps::step(int accumulate,
                                               bool sync_every_microbatch,
                                               PlannedStep storage) {
  const auto kept = [&](StepRunner& runner, int microbatches) {
    runner.keep_in(std::move(storage));
    runner.run(microbatches, sync_every_microbatch, /*keep=*/true);
    return runner.take();
  };
  if (!impl_->runner.is_steady_at_once()) {
    StepRunner runner(impl_->workload, impl_->outline, impl_->plan);
    for (int done = 0; done < 2; ++done) {
      runner.run(accumulate, sync_every_microbatch, /*keep=*/false);
    }
    return std::make_shared<PlannedStep>(kept(runner, accumulate));
  }
  StepRunner& runner = impl_->runner;
  if (!std::exchange(impl_->steady, true)) {
    if (runner.copies_microbatches()) {
      runner.end_step();
    } else {
      runner.run(1, /*sync_every_microbatch=*/true, /*keep=*/false);
    }
  }
  if (!sync_every_microbatch || !runner.copies_microbatches() || (accumulate == 1 && !impl_->two)) {
    return std::make_shared<PlannedStep>(kept(runner, accumulate));
  }
  if (!impl_->two) {
    PlannedStep two = kept(runner, 2);
    impl_->two = std::make_shared<TwoMicrobatches>(
        TwoMicrobatches{std::move(two), runner.places()[1], runner.places()[2]});
    impl_->two->step.tail = impl_->two->tail.items;
    storage = {};
  }
  if (accumulate == 2) {
    return {impl_->two, &impl_->two->step};
  }
  return std::make_shared<PlannedStep>(
      with_microbatches(*impl_->two, accumulate, std::move(storage)));
}

PlannedStep planned_step(const plan::Workload& workload,
                         const plan::ResolvedPlan& plan,
                         int step,
                         const plan::StepSettings& settings) {
  plan::require_step_support(plan, settings);
  plan::require_step_size(workload, settings.accumulate, plan::kMostOperators);
  return planned_step(workload, plan, step, static_cast<int>(settings.accumulate),
                      settings.sync_every_microbatch);
}

}  // namespace shardlens::schedule
