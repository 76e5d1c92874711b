#include "sim/scenario/baseline_parts.h"

#include <algorithm>
#include <vector>

namespace shardlens::sim {
namespace {

// The step of this number and duration, on any rank; nullptr: the analysis has none.
const StepFigures* figures_of(const ObservedStep& step, const analysis::Analysis& analysis) {
  for (const analysis::RankAnalysis& rank : analysis.ranks) {
    for (const analysis::StepAnalysis& each : rank.steps) {
      if (each.step == step.number && each.figures.duration() == step.duration) {
        return &each.figures;
      }
    }
  }
  return nullptr;
}

StepFigures mean_of(const StepFigures& a, const StepFigures& b) {
  StepFigures out;
  for (Nanoseconds StepFigures::*part :
       {&StepFigures::compute, &StepFigures::comm, &StepFigures::overlap,
        &StepFigures::exposed_comm, &StepFigures::exposed_copy, &StepFigures::idle}) {
    out.*part = (a.*part + b.*part) / 2;
  }
  return out;
}

}  // namespace

std::array<double, 3> BaselineParts::errors() const {
  const auto share = [this](Nanoseconds off) {
    return static_cast<double>(off) / static_cast<double>(measured.duration());
  };
  return {share(simulated.compute - measured.compute),
          share(simulated.exposed_comm - measured.exposed_comm),
          share(simulated.idle + simulated.exposed_copy - measured.idle - measured.exposed_copy)};
}

std::optional<BaselineParts> baseline_parts(const std::shared_ptr<const RecordedRun>& run,
                                            const analysis::Analysis& analysis) {
  std::vector<const ObservedStep*> steps;
  for (const ObservedStep& step : run->observation().steps) {
    steps.push_back(&step);
  }
  if (steps.empty()) {
    return std::nullopt;
  }
  std::ranges::stable_sort(steps, {}, &ObservedStep::duration);
  const size_t middle = steps.size() / 2;
  const StepFigures* high = figures_of(*steps[middle], analysis);
  const StepFigures* low = steps.size() % 2 == 1 ? high : figures_of(*steps[middle - 1], analysis);
  if (high == nullptr || low == nullptr) {
    return std::nullopt;
  }
  return BaselineParts{mean_of(*low, *high), run->own_figures()};
}

}  // namespace shardlens::sim
