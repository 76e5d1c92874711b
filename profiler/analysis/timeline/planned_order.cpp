#include "profiler/analysis/timeline/planned_order.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/model/model_file.h"
#include "core/model/step_workload.h"
#include "core/plan/parameter_groups.h"
#include "core/schedule/collective_of.h"
#include "core/schedule/planned/collective_totals.h"
#include "core/schedule/planned/planned.h"

namespace shardlens::analysis {
namespace {

constexpr int kSteadyStep = 3;

// The order depends neither on the number of tokens nor on how ranks divide operators.
plan::Workload workload_of(const trace::PlannedInputs& inputs) {
  SHARDLENS_CHECK(inputs.config.has_value(), "a plan without a workload has a model");
  if (inputs.config->file != nullptr) {
    return plan::hooks_of_file(*inputs.config->file, inputs.plan);
  }
  constexpr int64_t kFewTokens = 64;
  plan::StepSettings settings = inputs.settings;
  settings.seq = std::min<int64_t>(inputs.config->max_positions, kFewTokens);
  plan::ResolvedPlan whole = inputs.plan;
  whole.mesh = {};
  return plan::step_workload(*inputs.config, whole, settings);
}

bool is_of_backward(const HookEvent& hook) {
  return hook.hook == Hook::kPreBackward || hook.hook == Hook::kGradsReady ||
         hook.hook == Hook::kBackwardEnd || hook.recompute;
}

Section section_of(plan::Phase phase) {
  switch (phase) {
    case plan::Phase::kForward:
      return Section::kForward;
    case plan::Phase::kLoss:
      return Section::kLoss;
    case plan::Phase::kBackward:
    case plan::Phase::kRecompute:
      return Section::kBackward;
    case plan::Phase::kOptimizer:
      return Section::kOptimizer;
  }
  return Section::kNone;
}

std::vector<PlannedCall> calls_of(const plan::ResolvedPlan& plan,
                                  const schedule::PlannedStep& planned) {
  const std::vector<schedule::PlannedCollective> sizes =
      schedule::planned_collectives(plan, planned);
  std::map<UnitId, int64_t> gathered;  // by unit: its last gather
  std::vector<PlannedCall> out;
  for (const schedule::PlannedAction& each : planned.actions) {
    const schedule::Action& action = each.action;
    const auto kind = schedule::collective_of(action.op);
    if (!kind) {
      continue;
    }
    const auto last = gathered.find(action.unit);
    PlannedCall call{.kind = *kind,
                     .backward = is_of_backward(each.hook),
                     .cause = action.cause,
                     .stream = action.stream,
                     .unit = std::string(plan::unit_of_group(planned.unit_names[action.unit])),
                     .gather = last == gathered.end() ? -1 : last->second,
                     .bytes = sizes[out.size()].bytes,
                     .group = plan.groups.at(action.group)};
    if (*kind == CollectiveKind::kAllGather) {
      gathered[action.unit] = static_cast<int64_t>(out.size());
    }
    out.push_back(std::move(call));
  }
  return out;
}

void add_work(const plan::Workload& workload,
              const schedule::PlannedStep& planned,
              PlannedPass& out) {
  const auto name = [&](UnitId unit) {
    return std::string(plan::unit_of_group(planned.unit_names.at(unit)));
  };
  for (const schedule::PlannedItem& item : planned.order) {
    if (item.kind == schedule::PlannedItem::Kind::kOperator) {
      const plan::Operator& op = workload.operators[item.index];
      PlannedOwner owner{name(op.unit), section_of(op.phase)};
      if (owner.section == Section::kLoss || owner.section == Section::kOptimizer) {
        owner.unit.clear();
      }
      if (out.after.empty() || !(out.after.back() == owner)) {
        out.after.push_back(std::move(owner));
      }
    } else if (item.kind == schedule::PlannedItem::Kind::kAction) {
      const schedule::PlannedAction& each = planned.actions[item.index];
      const bool gathers = each.action.op == schedule::Op::kCopyOut;
      const bool packs = each.action.op == schedule::Op::kReduceCopyIn &&
                         each.action.buffer.kind == schedule::BufferKind::kReduceInput;
      if (gathers || packs) {
        const Section section = is_of_backward(each.hook) ? Section::kBackward : Section::kForward;
        out.copies.push_back({gathers, {name(each.action.unit), section}, std::move(out.after)});
        out.after.clear();
      }
    }
  }
}

}  // namespace

const PlannedPass& PlannedOrder::step(const Microbatches& microbatches) {
  if (const auto known = steps_.find(microbatches); known != steps_.end()) {
    return known->second;
  }
  if (inputs_.workload.order.empty() && !own_) {
    own_ = workload_of(inputs_);
  }
  const plan::Workload& workload = own_ ? *own_ : inputs_.workload;
  const schedule::PlannedStep planned = schedule::planned_step(
      workload, inputs_.plan, kSteadyStep, microbatches.count, microbatches.sync_every);
  PlannedPass out;
  out.calls = calls_of(inputs_.plan, planned);
  add_work(workload, planned, out);
  return steps_.emplace(microbatches, std::move(out)).first->second;
}

}  // namespace shardlens::analysis
