#include "profiler/check/check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"

namespace shardlens::check {
namespace {

std::string no_peaks(std::string_view side) {
  return fmt::format(
      "peak_memory is to be checked, but the {} has no allocations; record them with "
      "shardlens.record(memory=True) or profile_memory of torch.profiler",
      side);
}

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

std::vector<const RankStructure*> structures_of_rank(const std::vector<RunSummary>& runs,
                                                     int64_t rank) {
  std::vector<const RankStructure*> out;
  for (const RunSummary& run : runs) {
    const auto found = std::find_if(run.structure.begin(), run.structure.end(),
                                    [&](const RankStructure& s) { return s.rank == rank; });
    if (found != run.structure.end()) {
      out.push_back(&*found);
    }
  }
  return out;
}

// Steps of one run are not independent, so their distributions must differ by half, even if there
// are so many steps that less would be significant.
constexpr double kDistance = 0.5, kDistanceAlpha = 0.001;

std::optional<StructuralDifference> difference_of_sizes(
    const std::vector<const RankStructure*>& before,
    const std::vector<const RankStructure*>& after,
    const RankStructure::Key& key) {
  Sample a, b;
  for (const auto& [runs, all] : {std::pair(&before, &a), std::pair(&after, &b)}) {
    for (const RankStructure* run : *runs) {
      add_bytes_of_steps(*run, key, *all);
    }
  }
  if (a.empty() || b.empty() ||
      distribution_distance(a, b) <=
          std::max(kDistance, critical_distance(size_of(a), size_of(b), kDistanceAlpha))) {
    return std::nullopt;
  }
  const auto text = [&](const Sample& bytes) {
    return fmt::format("{}: {:.0f} to {:.0f} bytes a step, the middle one {:.0f}", key.second,
                       bytes.begin()->first, bytes.rbegin()->first, middle_of(bytes));
  };
  return StructuralDifference{"bytes", key.first, text(a), text(b), {}};
}

std::string milliseconds(double ns) {
  return fmt::format("{:.3f} ms", ns / 1e6);
}

// " (+3.1 %)", or "" if `of` is zero.
std::string share(double change, double of) {
  return of > 0 ? fmt::format(" ({:+.1f} %)", 100 * change / of) : "";
}

bool any_above(const std::vector<MemoryResult>& memory) {
  return std::any_of(memory.begin(), memory.end(),
                     [](const MemoryResult& m) { return m.verdict() == Verdict::kRegression; });
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
  if (any_above(result.memory)) {
    parts.push_back(memory_reason(result.memory));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

// How many runs or sessions would decide.
std::string enough_text(const CheckResult& result, const MetricResult& m) {
  if (!m.enough) {
    return fmt::format("no number of {} would decide about a change so near to the limit",
                       result.by_sessions ? "sessions" : "runs");
  }
  return result.by_sessions
             ? fmt::format(
                   "about {} sessions in the baseline would do, or capture both sides in "
                   "one session (--run and --against)",
                   *m.enough)
             : fmt::format("about {} runs a side would do", *m.enough);
}

std::string inconclusive_reason(const CheckResult& result) {
  const int64_t runs = std::min(result.baseline_runs, result.candidate_runs);
  for (const MetricResult& m : result.metrics) {
    if (m.gates && m.verdict == Verdict::kInconclusive) {
      if (!m.upper) {
        return fmt::format(
            "{} and {} runs of {} steps are too few for times: each side needs at least 3 runs of "
            "5 steps (structure needs one run)",
            result.baseline_runs, result.candidate_runs, result.steps);
      }
      return fmt::format(
          "{} is too noisy: with {}, a rise of up to {}{} is not excluded, and {} is the limit; {}",
          name_of(m.metric),
          result.by_sessions ? fmt::format("{} sessions in the baseline", result.baseline_sessions)
                             : fmt::format("{} runs a side", runs),
          milliseconds(*m.upper), share(*m.upper, m.effect.baseline), milliseconds(m.limit),
          enough_text(result, m));
    }
  }
  return "no gating metric could be measured";
}

std::string pass_reason(const CheckResult& result) {
  std::vector<std::string> parts;
  if (result.structure) {
    parts.emplace_back("the structure is the same");
  }
  for (const MetricResult& m : result.metrics) {
    if (m.gates && m.upper) {
      // An upper bound below zero excludes even a change of nothing.
      const double bound = std::max(*m.upper, 0.0);
      parts.push_back(fmt::format("{} rose by no more than {}{} (95 % confidence; limit {})",
                                  name_of(m.metric), milliseconds(bound),
                                  share(bound, m.effect.baseline), milliseconds(m.limit)));
    } else if (m.gates) {
      parts.push_back(fmt::format("{} did not rise", name_of(m.metric)));
    }
  }
  if (std::string memory = memory_reason(result.memory); !memory.empty()) {
    parts.push_back(std::move(memory));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

// Why something that is to gate could not be compared, as a side does not have it; "": all could.
std::string unmeasured_gate(const CheckResult& result, const CheckOptions& options) {
  for (const auto& gate : options.gates) {
    const Metric metric = gate.first;
    if (std::none_of(result.metrics.begin(), result.metrics.end(),
                     [&](const MetricResult& m) { return m.metric == metric; })) {
      return fmt::format("{} is to be checked, but could not be measured on both sides",
                         name_of(metric));
    }
  }
  const auto& memory = result.memory;
  if (memory.empty() && (options.memory.required || options.memory.most)) {
    return no_peaks("candidate");
  }
  if (options.memory.required && std::none_of(memory.begin(), memory.end(), [](const auto& m) {
        return m.baseline.has_value();
      })) {
    return no_peaks("baseline");
  }
  return "";
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

int64_t sessions_in(const std::vector<RunSummary>& runs) {
  std::set<int64_t> sessions;
  for (const RunSummary& run : runs) {
    sessions.insert(run.session);
  }
  return static_cast<int64_t>(sessions.size());
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
  result.baseline_sessions = sessions_in(baseline);
  result.candidate_sessions = sessions_in(candidate);
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
    const auto before = structures_of_rank(baseline, rank),
               after = structures_of_rank(candidate, rank);
    const std::set<RankStructure::Key> varying = varying_keys(before);
    std::set<StepStructure> known;
    std::map<StepStructure, int64_t> counts;
    for (const RankStructure* structure : before) {
      for (const RankStructure::Variant& variant : structure->variants) {
        const StepStructure step = without_sizes(variant.structure, varying);
        known.insert(step);
        counts[step] += variant.steps;
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
    for (const RankStructure* structure : after) {
      if (structure->variants.empty()) {
        continue;
      }
      const StepStructure step = without_sizes(structure->variants.front().structure, varying);
      if (known.contains(step)) {
        continue;
      }
      for (StructuralDifference& d : differences(usual, step)) {
        if (std::find(of_rank.begin(), of_rank.end(), d) == of_rank.end()) {
          of_rank.push_back(std::move(d));
        }
      }
    }
    for (const RankStructure::Key& key : varying) {
      if (auto d = difference_of_sizes(before, after, key)) {
        of_rank.push_back(std::move(*d));
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
    result.structure = true;
    result.structural = structural_differences(baseline, candidate);
  }
  result.memory = compare_memory(baseline, candidate, options.memory);
  result.metrics = measure(baseline, candidate, options);
  result.by_sessions = compares_sessions(baseline, options);
  const bool other_session = baseline.front().session != candidate.front().session;
  if (!result.by_sessions && !options.paired && other_session && !baseline.front().exact) {
    result.notes.push_back(
        "the saved baseline has one session: how much sessions differ is not known, and a "
        "difference between two sessions looks like one of the program");
  }
  const std::string unmeasured = unmeasured_gate(result, options);
  const auto any = [&](Verdict verdict) {
    return std::any_of(result.metrics.begin(), result.metrics.end(),
                       [&](const MetricResult& m) { return m.gates && m.verdict == verdict; });
  };
  if (!result.structural.empty() || any(Verdict::kRegression) || any_above(result.memory)) {
    result.verdict = Verdict::kRegression;
    result.reason = regression_reason(result);
    for (const MetricResult& m : result.metrics) {
      if (m.gates && (m.verdict == Verdict::kRegression ||
                      (m.metric == Metric::kStepTime && !any(Verdict::kRegression) &&
                       !result.structural.empty()))) {
        std::ranges::move(attribute(baseline, candidate, m.metric),
                          std::back_inserter(result.attribution));
      }
    }
    result.causes = causes_of(baseline, candidate, result);
  } else if (any(Verdict::kInconclusive) || !unmeasured.empty()) {
    result.verdict = Verdict::kInconclusive;
    result.reason = unmeasured.empty() ? inconclusive_reason(result) : unmeasured;
  } else {
    result.reason = pass_reason(result);
  }
  return result;
}

CheckResult check_memory_limit(const std::vector<RunSummary>& candidate, Bytes most) {
  CheckResult result = begin_result(candidate, candidate);
  result.baseline_runs = result.baseline_sessions = 0;
  CheckOptions options;
  options.gates.clear();
  options.memory = {.gates = false, .required = false, .limit = {}, .most = most};
  result.memory = compare_memory({}, candidate, options.memory);
  const std::string unmeasured = unmeasured_gate(result, options);
  result.verdict = any_above(result.memory) ? Verdict::kRegression
                   : unmeasured.empty()     ? Verdict::kPass
                                            : Verdict::kInconclusive;
  for (const RunSummary& run : candidate) {
    if (result.verdict == Verdict::kPass && !run.doubts.empty()) {
      result.verdict = Verdict::kInconclusive;
      result.reason = fmt::format("{}: {}", run.source, run.doubts.front());
    }
  }
  if (result.reason.empty()) {
    result.reason = unmeasured.empty() ? memory_reason(result.memory) : unmeasured;
  }
  return result;
}

CheckResult describe_runs(const std::vector<RunSummary>& baseline,
                          const std::vector<RunSummary>& candidate) {
  CheckResult result = begin_result(baseline, candidate);
  if (const std::string doubt = doubt_of(baseline, candidate); !doubt.empty()) {
    result.notes.push_back(doubt);
  }
  result.structure = true;
  result.structural = structural_differences(baseline, candidate);
  CheckOptions options;
  options.gates.clear();
  options.memory.gates = false;
  result.memory = compare_memory(baseline, candidate, options.memory);
  result.metrics = measure(baseline, candidate, options);
  result.attribution = attribute(baseline, candidate, Metric::kStepTime);
  result.causes = causes_of(baseline, candidate, result);
  return result;
}

}  // namespace shardlens::check
