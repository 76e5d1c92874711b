#include "sim/calibrate/model_ratios.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace shardlens::sim {
namespace {

using plan::Operator;
using plan::OperatorKind;
using plan::Phase;

size_t work_index(const Operator& op) {
  return op.kind == OperatorKind::kGemm ? 0 : op.kind == OperatorKind::kAttention ? 1 : 2;
}

double amount_of(const Operator& op) {
  return work_of(op.kind, op.flops, op.read + op.written);
}

bool is_inside(std::string_view module, std::string_view block) {
  return module.starts_with(block) &&
         (module.size() == block.size() || module[block.size()] == '.');
}

Nanoseconds rounded(double time) {
  return std::llround(std::min(time, 1e15));
}

// Whether a unit with modules of a block has only such modules, so that its operators are of
// blocks.
bool tells_blocks(const plan::ResolvedPlan& plan, const std::vector<std::string>& blocks) {
  return !blocks.empty() && std::ranges::all_of(plan.units, [&](const plan::Unit& unit) {
    const auto inside = [&](const std::string& module) {
      return std::ranges::any_of(blocks,
                                 [&](const auto& block) { return is_inside(module, block); });
    };
    std::vector<std::string> owned;
    for (const uint32_t parameter : unit.parameters) {
      owned.push_back(plan.tree.parameters[parameter].fqn);
    }
    return std::ranges::all_of(owned, inside) || std::ranges::none_of(owned, inside);
  });
}

}  // namespace

ModelRatios::ModelRatios(const plan::Workload& recorded,
                         const plan::ResolvedPlan& own,
                         const plan::Workload& model,
                         const plan::ResolvedPlan& of_model,
                         const CalibratedCostModel& costs) {
  for (const uint32_t block : of_model.tree.blocks) {
    blocks_.push_back(of_model.tree.modules[block].fqn);
  }
  if (!tells_blocks(own, blocks_)) {
    blocks_.clear();
  }
  add_recorded(recorded, own, costs);
  // Factors are still 1, so these are the prices that they are for.
  for (const Operator& op : model.operators) {
    Part& part = parts_[part_of(op, in_block(op.module))];
    part.kinds[work_index(op)].model += static_cast<double>(compute(op, costs).alone);
    part.model_issue += static_cast<double>(issue(op, costs));
  }
  set_factors();
}

void ModelRatios::add_recorded(const plan::Workload& recorded,
                               const plan::ResolvedPlan& own,
                               const CalibratedCostModel& costs) {
  std::vector<bool> of_block;
  for (const plan::Unit& unit : own.units) {
    of_block.push_back(!unit.parameters.empty() &&
                       in_block(own.tree.parameters[unit.parameters.front()].fqn));
  }
  for (const Operator& op : recorded.operators) {
    Part& part = parts_[part_of(op, of_block.at(op.unit))];
    Kind& kind = part.kinds[work_index(op)];
    kind.recorded += static_cast<double>(costs.compute(op).alone);
    kind.work += amount_of(op);
    part.recorded_issue += static_cast<double>(costs.issue(op));
    part.operators += 1;
  }
}

// What was recorded of a kind that the model does not run is shared out among the part's others.
void ModelRatios::set_factors() {
  for (Part& part : parts_) {
    double all = 0, matched = 0;
    for (const Kind& kind : part.kinds) {
      all += kind.recorded;
      matched += kind.model > 0 ? kind.recorded : 0;
    }
    for (Kind& kind : part.kinds) {
      if (kind.model > 0 && matched > 0) {
        kind.factor = kind.recorded / kind.model * (all / matched);
      }
    }
    if (part.model_issue > 0 && part.recorded_issue > 0) {
      part.issue_factor = part.recorded_issue / part.model_issue;
    }
  }
}

size_t ModelRatios::part_of(const Operator& op, bool in_block) const {
  const size_t part = op.phase == Phase::kOptimizer                                   ? 2
                      : op.phase == Phase::kBackward || op.phase == Phase::kRecompute ? 1
                                                                                      : 0;
  return part + (in_block && part != 2 ? kParts : 0);
}

bool ModelRatios::in_block(const std::string& module) const {
  return std::ranges::any_of(blocks_,
                             [&](const std::string& block) { return is_inside(module, block); });
}

const ModelRatios::Part& ModelRatios::part(const Operator& op) const {
  return parts_[part_of(op, in_block(op.module))];
}

WorkTime ModelRatios::compute(const Operator& op, const CalibratedCostModel& costs) const {
  const Part& of = part(op);
  const Kind& kind = of.kinds[work_index(op)];
  // Of a kind that was not seen the time is in that of other operators, or of the host: an operator
  // that calls others is not recorded as one.
  if (!costs.knows(op) && of.operators > 0) {
    const double time = std::max(1.0, kind.rate() * amount_of(op) * kind.factor);
    return {rounded(time), rounded(time * costs.compute_slowdown())};
  }
  const WorkTime base = costs.compute_by_class(op);
  const auto scaled = [&kind](Nanoseconds time) {
    return time == 0 ? 0
                     : std::max<Nanoseconds>(1, rounded(static_cast<double>(time) * kind.factor));
  };
  return {scaled(base.alone), scaled(base.beside)};
}

Nanoseconds ModelRatios::issue(const Operator& op, const CalibratedCostModel& costs) const {
  const Part& of = part(op);
  const double mean = of.operators > 0 ? of.recorded_issue / of.operators : 0;
  const double base = costs.knows(op) ? static_cast<double>(costs.issue(op)) : mean;
  return rounded(base * of.issue_factor);
}

}  // namespace shardlens::sim
