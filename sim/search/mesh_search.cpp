#include "sim/search/mesh_search.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "sim/search/meshes.h"

namespace shardlens::sim {

MeshSearch::MeshSearch(const Scenario& scenario,
                       const Target& target,
                       Predictions& predictions,
                       const plan::MeshSizes& mesh,
                       int64_t samples)
    : scenario_(scenario), target_(target), predictions_(predictions) {
  result_.mesh = mesh;
  result_.samples = samples;
}

void MeshSearch::refuse(const std::string& why, size_t count) {
  result_.refusal = result_.refusal.empty() ? why : result_.refusal;
  result_.refused += count;
}

std::vector<MeshSearch::Group> MeshSearch::groups_of(
    const std::vector<Candidate>& candidates,
    std::span<const std::optional<Precision>> precisions) const {
  std::map<std::tuple<size_t, bool, int64_t>, Group> groups;
  for (const Candidate& each : candidates) {  // those of the same units follow each other
    const auto precision = static_cast<size_t>(
        std::distance(precisions.begin(), std::ranges::find(precisions, each.precision)));
    Group& group = groups[{precision, each.checkpoint, each.batch}];
    group.precision = precision;
    group.candidates.push_back(each);
  }
  std::vector<Group> out;
  for (auto& [key, group] : groups) {
    out.push_back(std::move(group));
  }
  return out;
}

// Whether the model runs on the mesh at all. What the evaluator builds for the candidate, it keeps.
bool MeshSearch::runs(const Candidate& candidate, Evaluator& evaluator) {
  try {
    (void)evaluator.operators(candidate);
    return true;
  } catch (const InputError&) {
    // It may refuse this candidate only.
  }
  const std::optional<std::string> refusal = refusal_of_mesh(scenario_of(candidate, scenario_));
  if (refusal) {
    result_.end = MeshEnd::kRefused;
    result_.refusal = *refusal;
  }
  return !refusal;
}

void MeshSearch::bound(const std::vector<Candidate>& candidates,
                       std::span<const std::optional<Precision>> precisions) {
  best_.resize(precisions.size());
  std::vector<Group> groups = groups_of(candidates, precisions);
  Evaluator evaluator(scenario_, target_);
  if (groups.empty() || !runs(groups.front().candidates.back(), evaluator)) {
    return;
  }
  result_.all = candidates.size();
  for (Group& group : groups) {
    if (predictions_.cancelled()) {
      cancelled_ = true;
      return;
    }
    try {
      group.least = least_step(evaluator, group.candidates.back());
    } catch (const InputError& refusal) {
      refuse(refusal.what(), group.candidates.size());
      continue;
    }
    if (target_.memory > 0 && group.least.reserved > target_.memory) {
      result_.pruned += group.candidates.size();
    } else {
      groups_.push_back(std::move(group));
    }
  }
  std::ranges::stable_sort(groups_, {}, [](const Group& each) { return each.least.duration; });
  result_.least = least().value_or(0);
  settle();
}

std::optional<Nanoseconds> MeshSearch::least() const {
  return groups_.empty() ? std::nullopt : std::optional(groups_.front().least.duration);
}

std::optional<Nanoseconds> MeshSearch::best(size_t precision) const {
  const std::optional<Found>& best = best_[precision];
  return best ? std::optional(best->outcome.figures.duration()) : std::nullopt;
}

void MeshSearch::predict(const Group& group, Evaluator& evaluator) {
  std::optional<Found>& best = best_[group.precision];
  for (const Candidate& candidate : group.candidates) {
    if (predictions_.cancelled()) {
      cancelled_ = true;
      return;
    }
    try {
      found_.push_back({candidate, predictions_.of(candidate, evaluator)});
    } catch (const InputError& refusal) {
      refuse(refusal.what(), 1);
      continue;
    }
    ++result_.evaluated;
    const Outcome& now = found_.back().outcome;
    if (now.fits && (!best || now.figures.duration() < best->outcome.figures.duration())) {
      best = found_.back();
    }
  }
}

void MeshSearch::search(std::span<const Nanoseconds> limits) {
  std::optional<Evaluator> evaluator;
  for (const Group& group : groups_) {
    const Nanoseconds limit =
        std::min(limits[group.precision], best(group.precision).value_or(limits[group.precision]));
    if (group.least.duration >= limit) {
      result_.slower += group.candidates.size();
      continue;
    }
    if (!evaluator) {
      evaluator.emplace(scenario_, target_);
    }
    predict(group, *evaluator);
    if (cancelled_) {
      break;
    }
  }
  groups_.clear();
  settle();
}

// How the search of the mesh ended, as far as it came.
void MeshSearch::settle() {
  for (const std::optional<Found>& each : best_) {
    if (each && (!result_.best ||
                 each->outcome.figures.duration() < result_.best->outcome.figures.duration())) {
      result_.best = each;
    }
  }
  result_.end = result_.best                             ? MeshEnd::kSearched
                : cancelled_ || !groups_.empty()         ? MeshEnd::kNotReached
                : result_.slower > 0                     ? MeshEnd::kSlower
                : result_.evaluated + result_.pruned > 0 ? MeshEnd::kTooLarge
                                                         : MeshEnd::kRefused;
}

}  // namespace shardlens::sim
