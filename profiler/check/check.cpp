#include "profiler/check/check.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"

namespace shardlens::check {
namespace {

void require_same_ranks(const std::vector<RunSummary>& baseline,
                        const std::vector<RunSummary>& candidate) {
  if (baseline.empty() || candidate.empty()) {
    throw InputError("",
                     fmt::format("the {} has no run", baseline.empty() ? "baseline" : "candidate"));
  }
  const RunSummary& first = baseline.front();
  for (const auto* side : {&baseline, &candidate}) {
    for (const RunSummary& run : *side) {
      if (run.ranks != first.ranks) {
        throw InputError(
            run.source,
            fmt::format("has the traces of rank {}, but {} has those of rank {}: only runs of the "
                        "same ranks can be compared (a directory is one run, a trace file is a run "
                        "of one rank)",
                        fmt::join(run.ranks, ", "), first.source, fmt::join(first.ranks, ", ")));
      }
    }
  }
}

// The reason against giving a verdict; "": none.
std::string doubt_of(const std::vector<RunSummary>& baseline,
                     const std::vector<RunSummary>& candidate) {
  for (const auto* side : {&baseline, &candidate}) {
    for (const RunSummary& run : *side) {
      if (!run.doubts.empty()) {
        return fmt::format("{}: {}", run.source, run.doubts.front());
      }
    }
  }
  for (const auto* side : {&baseline, &candidate}) {
    for (const RunSummary& run : *side) {
      const std::vector<std::string> differences = fingerprint_differences(baseline.front(), run);
      if (!differences.empty()) {
        return fmt::format("{} ran under other conditions than {}: {}", run.source,
                           baseline.front().source, fmt::join(differences, "; "));
      }
    }
  }
  return "";
}

const RankStructure* structure_of_rank(const RunSummary& run, int64_t rank) {
  for (const RankStructure& structure : run.structure) {
    if (structure.rank == rank) {
      return &structure;
    }
  }
  return nullptr;
}

std::string milliseconds(double ns) {
  return fmt::format("{:.3f} ms", ns / 1e6);
}

// " (+3.1 %)", or "" if `of` is zero.
std::string share(double change, double of) {
  return of > 0 ? fmt::format(" ({:+.1f} %)", 100 * change / of) : "";
}

std::string regression_reason(const CheckResult& result) {
  std::vector<std::string> parts;
  if (!result.structural.empty()) {
    const size_t n = result.structural.size();
    parts.push_back(fmt::format("the structure changed in {} {}", n, n == 1 ? "place" : "places"));
  }
  for (const MetricResult& m : result.metrics) {
    if (m.gates && m.verdict == Verdict::kRegression) {
      parts.push_back(fmt::format(
          "{} rose by {}{}, more than {}", name_of(m.metric), milliseconds(m.effect.change),
          share(m.effect.change, m.effect.baseline), milliseconds(m.threshold)));
    }
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string inconclusive_reason(const CheckResult& result) {
  const int64_t runs = std::min(result.baseline_runs, result.candidate_runs);
  for (const MetricResult& m : result.metrics) {
    if (m.gates && m.verdict == Verdict::kInconclusive) {
      if (!m.detectable) {
        return fmt::format(
            "{} and {} runs of {} steps are too few for times: each side needs at least 3 runs of "
            "5 steps (structure needs one run)",
            result.baseline_runs, result.candidate_runs, result.steps);
      }
      return fmt::format(
          "{} is too noisy: with {} runs a side a rise of up to {}{} cannot be excluded; use more "
          "runs or a quieter machine",
          name_of(m.metric), runs, milliseconds(m.effect.change + m.half_width),
          share(m.effect.change + m.half_width, m.effect.baseline));
    }
  }
  return "no gating metric could be measured";
}

std::string pass_reason(const CheckResult& result) {
  std::vector<std::string> parts{"the structure is the same"};
  for (const MetricResult& m : result.metrics) {
    if (m.gates && m.detectable) {
      parts.push_back(
          fmt::format("with these {} × {} steps, a {} of {}{} would have been detected",
                      std::min(result.baseline_runs, result.candidate_runs), result.steps,
                      m.metric == Metric::kStepTime ? "slowdown" : "rise of exposed communication",
                      milliseconds(*m.detectable), share(*m.detectable, m.effect.baseline)));
    } else if (m.gates) {
      parts.push_back(fmt::format("{} did not rise", name_of(m.metric)));
    }
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

void add_notes(const std::vector<RunSummary>& baseline,
               const std::vector<RunSummary>& candidate,
               CheckResult& result) {
  std::set<std::string> seen;
  for (const auto* side : {&baseline, &candidate}) {
    for (const RunSummary& run : *side) {
      for (const std::string& note : run.notes) {
        if (seen.insert(note).second) {
          result.notes.push_back(fmt::format("{}: {}", run.source, note));
        }
      }
      for (const RankStructure& rank : run.structure) {
        if (rank.variants.size() > 1 && seen.insert("variants" + run.source).second) {
          result.notes.push_back(fmt::format(
              "{}: the steps differ in structure; the most frequent one ({} of {}) is compared",
              run.source, rank.variants.front().steps, run.used));
        }
      }
    }
  }
  const auto& before = baseline.front().fingerprint.versions;
  for (const auto& [key, value] : candidate.front().fingerprint.versions) {
    if (const auto same = before.find(key); same != before.end() && same->second != value) {
      result.notes.push_back(fmt::format("{}: {}, was {}", key, value, same->second));
    }
  }
}

CheckResult begin_result(const std::vector<RunSummary>& baseline,
                         const std::vector<RunSummary>& candidate) {
  require_same_ranks(baseline, candidate);
  CheckResult result;
  result.baseline_runs = static_cast<int64_t>(baseline.size());
  result.candidate_runs = static_cast<int64_t>(candidate.size());
  result.steps = baseline.front().used;
  for (const auto* side : {&baseline, &candidate}) {
    for (const RunSummary& run : *side) {
      result.steps = std::min(result.steps, run.used);
    }
  }
  add_notes(baseline, candidate, result);
  return result;
}

}  // namespace

std::string_view name_of(Verdict verdict) {
  constexpr std::string_view kNames[] = {"pass", "regression", "inconclusive"};
  return kNames[static_cast<size_t>(verdict)];
}

std::vector<std::string> fingerprint_differences(const RunSummary& baseline,
                                                 const RunSummary& candidate) {
  std::vector<std::string> out;
  for (const auto& [key, value] : candidate.fingerprint.machine) {
    const auto other = baseline.fingerprint.machine.find(key);
    if (other != baseline.fingerprint.machine.end() && other->second != value) {
      out.push_back(fmt::format("{} {}, not {}", key, value, other->second));
    }
  }
  return out;
}

std::vector<StructuralDifference> structural_differences(const std::vector<RunSummary>& baseline,
                                                         const std::vector<RunSummary>& candidate) {
  std::vector<StructuralDifference> out;
  for (const int64_t rank : baseline.front().ranks) {
    std::set<StepStructure> known;
    std::map<StepStructure, int64_t> counts;
    for (const RunSummary& run : baseline) {
      const RankStructure* structure = structure_of_rank(run, rank);
      if (structure != nullptr) {
        for (const RankStructure::Variant& variant : structure->variants) {
          known.insert(variant.structure);
          counts[variant.structure] += variant.steps;
        }
      }
    }
    if (counts.empty()) {
      continue;
    }
    const StepStructure& usual =
        std::max_element(counts.begin(), counts.end(), [](auto& a, auto& b) {
          return a.second < b.second;
        })->first;
    std::vector<StructuralDifference> of_rank;
    for (const RunSummary& run : candidate) {
      const RankStructure* structure = structure_of_rank(run, rank);
      if (structure == nullptr || structure->variants.empty() ||
          known.contains(structure->variants.front().structure)) {
        continue;
      }
      for (StructuralDifference& d : differences(usual, structure->variants.front().structure)) {
        if (std::find(of_rank.begin(), of_rank.end(), d) == of_rank.end()) {
          of_rank.push_back(std::move(d));
        }
      }
    }
    for (StructuralDifference& d : of_rank) {
      const auto same = std::find_if(out.begin(), out.end(), [&](StructuralDifference other) {
        other.ranks.clear();
        return other == d;
      });
      (same == out.end() ? out.emplace_back(std::move(d)) : *same).ranks.push_back(rank);
    }
  }
  return out;
}

CheckResult check_runs(const std::vector<RunSummary>& baseline,
                       const std::vector<RunSummary>& candidate,
                       const CheckOptions& options) {
  CheckResult result = begin_result(baseline, candidate);
  result.alpha = options.alpha;
  if (const std::string doubt = doubt_of(baseline, candidate); !doubt.empty()) {
    result.verdict = Verdict::kInconclusive;
    result.reason = doubt;
    return result;
  }
  if (options.structure) {
    result.structural = structural_differences(baseline, candidate);
  }
  result.metrics = measure(baseline, candidate, options);
  const auto any = [&](Verdict verdict) {
    return std::any_of(result.metrics.begin(), result.metrics.end(),
                       [&](const MetricResult& m) { return m.gates && m.verdict == verdict; });
  };
  if (!result.structural.empty() || any(Verdict::kRegression)) {
    result.verdict = Verdict::kRegression;
    result.reason = regression_reason(result);
    for (const MetricResult& m : result.metrics) {
      if (m.gates && (m.verdict == Verdict::kRegression ||
                      (m.metric == Metric::kStepTime && !any(Verdict::kRegression)))) {
        std::ranges::move(attribute(baseline, candidate, m.metric),
                          std::back_inserter(result.attribution));
      }
    }
    result.causes = causes_of(baseline, candidate, result);
  } else if (any(Verdict::kInconclusive)) {
    result.verdict = Verdict::kInconclusive;
    result.reason = inconclusive_reason(result);
  } else {
    result.reason = pass_reason(result);
  }
  return result;
}

CheckResult describe_runs(const std::vector<RunSummary>& baseline,
                          const std::vector<RunSummary>& candidate) {
  CheckResult result = begin_result(baseline, candidate);
  if (const std::string doubt = doubt_of(baseline, candidate); !doubt.empty()) {
    result.notes.push_back(doubt);
  }
  result.structural = structural_differences(baseline, candidate);
  CheckOptions options;
  options.gates.clear();
  result.metrics = measure(baseline, candidate, options);
  result.attribution = attribute(baseline, candidate, Metric::kStepTime);
  result.causes = causes_of(baseline, candidate, result);
  return result;
}

}  // namespace shardlens::check
