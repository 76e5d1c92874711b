#include "profiler/check/compare.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shardlens::check {
namespace {

constexpr double kTail = 0.005;

// One item in the runs of one side.
struct Side {
  std::vector<double> runs, steps;  // times: a mean per run, and every step of all runs
  double exposed = 0;               // mean over runs
};

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) {
    sum += v;
  }
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

std::map<ItemKey, Side> sides_of(const std::vector<RunSummary>& runs) {
  std::map<ItemKey, Side> out;
  for (const RunSummary& run : runs) {
    for (const Item& item : run.items) {
      Side& side = out[item.key];
      side.runs.push_back(mean_of(item.steps));
      side.steps.insert(side.steps.end(), item.steps.begin(), item.steps.end());
      side.exposed += item.exposed / static_cast<double>(runs.size());
    }
  }
  return out;
}

ItemChange change_of(const ItemKey& key, const Side* baseline, const Side* candidate) {
  ItemChange change;
  change.key = key;
  if (baseline != nullptr) {
    change.baseline = mean_of(baseline->runs);
    change.baseline_exposed = baseline->exposed;
  }
  if (candidate != nullptr) {
    change.candidate = mean_of(candidate->runs);
    change.candidate_exposed = candidate->exposed;
  }
  change.delta = change.candidate.value_or(0) - change.baseline.value_or(0);
  if (change.matched()) {
    const bool runs = baseline->runs.size() > 1 && candidate->runs.size() > 1;
    const Effect effect = runs ? effect_of_runs(baseline->runs, candidate->runs)
                               : effect_of_runs(baseline->steps, candidate->steps);
    change.within_noise = std::abs(change.delta) <= effect.half_width(kTail);
  }
  return change;
}

}  // namespace

Comparison compare_runs(const std::vector<RunSummary>& baseline,
                        const std::vector<RunSummary>& candidate) {
  Comparison out;
  out.result = describe_runs(baseline, candidate);
  const std::map<ItemKey, Side> before = sides_of(baseline), after = sides_of(candidate);
  for (const auto& [key, side] : before) {
    const auto other = after.find(key);
    out.items.push_back(change_of(key, &side, other == after.end() ? nullptr : &other->second));
  }
  for (const auto& [key, side] : after) {
    if (!before.contains(key)) {
      out.items.push_back(change_of(key, nullptr, &side));
    }
  }
  std::stable_sort(out.items.begin(), out.items.end(), [](const auto& a, const auto& b) {
    return std::abs(a.delta) > std::abs(b.delta);
  });
  return out;
}

}  // namespace shardlens::check
