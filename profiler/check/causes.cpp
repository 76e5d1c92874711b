#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "profiler/check/check.h"

namespace shardlens::check {
namespace {

constexpr size_t kMostNamed = 4;

std::string named(const std::vector<std::string>& units) {
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(units.size(), kMostNamed); ++i) {
    names.push_back(unit_name(units[i]));
  }
  const std::string more =
      units.size() > kMostNamed ? fmt::format(" and {} more", units.size() - kMostNamed) : "";
  return fmt::format("{}{}", fmt::join(names, "; "), more);
}

std::vector<std::string> units_of_kind(const CheckResult& result, std::string_view kind) {
  std::vector<std::string> units;
  for (const StructuralDifference& d : result.structural) {
    if (d.kind == kind) {
      units.push_back(d.unit);
    }
  }
  return units;
}

// For each key that differs: views: was "fresh", is "frozen".
std::vector<std::string> plan_differences(const std::string& baseline,
                                          const std::string& candidate) {
  const auto a = nlohmann::json::parse(baseline, nullptr, false),
             b = nlohmann::json::parse(candidate, nullptr, false);
  std::vector<std::string> out;
  if (!a.is_object() || !b.is_object()) {
    return out;
  }
  for (const auto& [key, value] : a.items()) {
    if (const auto other = b.find(key); other != b.end() && *other != value) {
      out.push_back(fmt::format("{}: was {}, is {}", key, value.dump(), other->dump()));
    }
  }
  return out;
}

void add_structural(const std::vector<RunSummary>& baseline,
                    const std::vector<RunSummary>& candidate,
                    const CheckResult& result,
                    std::vector<std::string>& out) {
  const auto held_up = [](const RunSummary& run) { return !run.late_reductions.empty(); };
  const auto frozen = std::find_if(candidate.begin(), candidate.end(), held_up);
  const bool frozen_is_new =
      frozen != candidate.end() && std::none_of(baseline.begin(), baseline.end(), held_up);
  if (frozen_is_new) {
    out.push_back(fmt::format(
        "frozen views: the views of the parameters were made only once, before training, so the "
        "reduce-scatters of {} are late: they are issued after the whole backward",
        named(frozen->late_reductions)));
  }
  std::vector<std::string> gone, fresh;
  for (const StructuralDifference& d : result.structural) {
    if (d.kind == "unit") {
      (d.candidate == "absent" ? gone : fresh).push_back(d.unit);
    }
  }
  if (!gone.empty() || !fresh.empty()) {
    out.push_back(fmt::format("the wrapping changed: units removed: {}; units added: {}",
                              gone.empty() ? "(none)" : named(gone),
                              fresh.empty() ? "(none)" : named(fresh)));
  }
  for (const StructuralDifference& d : result.structural) {
    if (d.kind == "prefetch") {
      out.push_back(fmt::format("prefetch of {}: {} (baseline: {}){}", unit_name(d.unit),
                                d.candidate, d.baseline,
                                units_of_kind(result, "prefetch").size() > 1
                                    ? fmt::format("; the prefetch changed for {}",
                                                  named(units_of_kind(result, "prefetch")))
                                    : ""));
      break;
    }
  }
  if (out.empty() && !result.structural.empty()) {
    const StructuralDifference& d = result.structural.front();
    out.push_back(fmt::format("{} of {}: {} (baseline: {})", d.kind, unit_name(d.unit), d.candidate,
                              d.baseline));
  }
}

}  // namespace

std::vector<std::string> causes_of(const std::vector<RunSummary>& baseline,
                                   const std::vector<RunSummary>& candidate,
                                   const CheckResult& result) {
  std::vector<std::string> out;
  add_structural(baseline, candidate, result, out);
  const std::vector<std::string> plan =
      plan_differences(baseline.front().fingerprint.plan, candidate.front().fingerprint.plan);
  if (!plan.empty()) {
    out.push_back(fmt::format("the plans differ: {}", fmt::join(plan, "; ")));
  }
  if (result.verdict == Verdict::kRegression && result.structural.empty() &&
      !result.attribution.empty()) {
    const AttributionRow& most = result.attribution.front();
    out.push_back(fmt::format("the structure is the same; {:+.3f} ms of the change is {} of {}",
                              most.delta / 1e6, most.part, unit_name(most.unit)));
  }
  if (std::string memory = memory_cause(result.memory); !memory.empty()) {
    out.push_back(std::move(memory));
  }
  return out;
}

std::vector<AttributionRow> attribute(const std::vector<RunSummary>& baseline,
                                      const std::vector<RunSummary>& candidate,
                                      Metric metric) {
  std::map<std::pair<std::string, std::string>, AttributionRow> rows;
  const auto add = [&](const std::vector<RunSummary>& runs, double AttributionRow::*side) {
    for (const RunSummary& run : runs) {
      for (const Part& part : metric == Metric::kStepTime ? run.step_parts : run.exposed_parts) {
        rows[{part.unit, part.part}].*side += part.ns / static_cast<double>(runs.size());
      }
    }
  };
  add(candidate, &AttributionRow::candidate);
  add(baseline, &AttributionRow::baseline);
  std::vector<AttributionRow> out;
  for (const auto& [key, row] : rows) {
    out.push_back(
        {metric, key.first, key.second, row.candidate - row.baseline, row.baseline, row.candidate});
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return std::abs(a.delta) > std::abs(b.delta);
  });
  return out;
}

}  // namespace shardlens::check
