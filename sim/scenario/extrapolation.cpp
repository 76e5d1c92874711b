#include "sim/scenario/extrapolation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "core/schedule/planned/collective_totals.h"
#include "sim/calibrate/calibration.h"

namespace shardlens::sim {
namespace {

// How far outside the measured sizes, on either side.
double far_outside(double beyond) {
  return std::max(beyond, 1 / beyond);
}

class Extrapolations {
 public:
  void add(const std::string& work, double beyond, Nanoseconds duration) {
    if (beyond == 1) {
      return;
    }
    Extrapolation& each = by_work_[work];
    each.work = work;
    each.duration += duration;
    if (far_outside(beyond) > far_outside(each.beyond)) {
      each.beyond = beyond;
    }
  }

  [[nodiscard]] std::vector<Extrapolation> take(Nanoseconds step) {
    std::vector<Extrapolation> out;
    for (auto& [work, each] : by_work_) {
      each.share = step > 0 ? static_cast<double>(each.duration) / static_cast<double>(step) : 0;
      out.push_back(std::move(each));
    }
    std::stable_sort(out.begin(), out.end(), [](const Extrapolation& a, const Extrapolation& b) {
      return a.share > b.share;
    });
    return out;
  }

 private:
  std::map<std::string, Extrapolation> by_work_;
};

}  // namespace

bool Extrapolation::is_far() const {
  return far_outside(beyond) > kFar && share >= kLeastShare;
}

std::vector<Extrapolation> extrapolations(const PricedStep& step,
                                          const CostModel& costs,
                                          int64_t microbatches,
                                          Nanoseconds duration) {
  Extrapolations found;
  for (const plan::Operator& op : step.workload->operators) {
    if (const double beyond = costs.beyond(op); beyond != 1) {
      found.add(fmt::format("{} in {}", class_of(op), plan_name(op.dtype)), beyond,
                costs.compute(op).alone * microbatches);
    }
  }
  for (const schedule::PlannedCollective& each :
       schedule::planned_collectives(*step.plan, *step.planned)) {
    const auto ranks = static_cast<int>(step.plan->groups[each.group].size);
    if (const double beyond = costs.beyond(each.kind, ranks, each.bytes); beyond != 1) {
      found.add(fmt::format("{} between {} ranks", name_of(each.kind), ranks), beyond,
                costs.duration(each.kind, ranks, each.bytes));
    }
  }
  for (const plan::Communication& each : step.workload->communications) {
    const auto ranks = static_cast<int>(step.plan->groups.at(each.group).size);
    if (const double beyond = costs.beyond(each.kind, ranks, each.bytes); beyond != 1) {
      found.add(fmt::format("{} between {} ranks", name_of(each.kind), ranks), beyond,
                costs.duration(each.kind, ranks, each.bytes) * microbatches);
    }
  }
  return found.take(duration);
}

std::string far_extrapolations_text(std::span<const Extrapolation> all) {
  std::string out;
  for (const Extrapolation& each : all) {
    if (each.is_far()) {
      out += fmt::format("{}{} at {:.3g} x the {} measured size ({:.1f} % of the step)",
                         out.empty() ? "" : "; ", each.work, each.beyond,
                         each.beyond > 1 ? "largest" : "smallest", 100 * each.share);
    }
  }
  return out;
}

}  // namespace shardlens::sim
