#include "sim/search/mesh_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "sim/search/evaluator.h"

namespace shardlens::sim {
namespace {

constexpr double kLeastShare = 0.1;     // of the step, of a part that bounds it
constexpr double kFaster = 0.999;       // of a step that is called faster
constexpr size_t kPartsNamed = 2;       // of a difference
constexpr double kLeastNamed = 0.0005;  // of the step, of a part that is named

using Parts = std::vector<std::pair<std::string, Nanoseconds>>;

// The parts of a step, by name: they sum to its duration.
Parts parts_of(const MeshReport& report) {
  Parts out{{"compute", report.figures.compute}};
  for (const PurposeTime& each : report.purposes) {
    out.emplace_back(name_of(each.purpose), each.exposed);
  }
  out.emplace_back("exposed copies", report.figures.exposed_copy);
  out.emplace_back("idle", report.figures.idle);
  return out;
}

std::string signed_ms(Nanoseconds time) {
  return fmt::format("{:+.3f} ms", static_cast<double>(time) * 1e-6);
}

std::string difference_of(const MeshReport& report, const MeshReport& best) {
  std::map<std::string, Nanoseconds> changes;
  for (const auto& [name, time] : parts_of(report)) {
    changes[name] += time;
  }
  for (const auto& [name, time] : parts_of(best)) {
    changes[name] -= time;
  }
  Parts sorted(changes.begin(), changes.end());
  std::ranges::stable_sort(sorted, {}, [](const auto& each) { return -std::abs(each.second); });
  const Nanoseconds longer = report.figures.duration() - best.figures.duration();
  std::string out = fmt::format("{:.3f} ms longer", static_cast<double>(longer) * 1e-6);
  for (size_t i = 0; i < std::min(kPartsNamed, sorted.size()); ++i) {
    if (static_cast<double>(std::abs(sorted[i].second)) <
        kLeastNamed * static_cast<double>(best.figures.duration())) {
      break;
    }
    out +=
        fmt::format("{} {} {}", i == 0 ? ":" : ",", sorted[i].first, signed_ms(sorted[i].second));
  }
  return out;
}

// Plans that need more memory than this one and usually less time.
std::vector<Candidate> larger(const Candidate& of) {
  std::vector<Candidate> out;
  if (of.checkpoint) {
    out.push_back(of);
    out.back().checkpoint = false;
  }
  if (of.reshard && gathers(of) && of.blocks_per_unit > 0) {
    out.push_back(of);
    out.back().reshard = false;
  }
  if (of.accumulate > 1) {
    out.push_back(of);
    out.back().batch = of.batch * of.accumulate;
    out.back().accumulate = 1;
  }
  return out;
}

bool is_bound_by_memory(const Found& found, Evaluator& evaluator) {
  const Bytes memory = evaluator.target().memory;
  return memory > 0 && std::ranges::any_of(larger(found.candidate), [&](const Candidate& each) {
           try {
             const Outcome now = evaluator.evaluate_unlimited(each);
             return now.peak_reserved > memory &&
                    static_cast<double>(now.figures.duration()) <
                        kFaster * static_cast<double>(found.outcome.figures.duration());
           } catch (const InputError&) {
             return false;  // the machine lacks measurements of it
           }
         });
}

std::vector<PurposeTime> purposes_of(const Prediction& prediction) {
  std::map<Purpose, PurposeTime> out;
  for (const analysis::CommunicationFigures& each : prediction.communication) {
    PurposeTime& purpose = out[each.purpose];
    purpose.purpose = each.purpose;
    purpose.busy += each.busy;
    purpose.exposed += each.exposed;
  }
  std::vector<PurposeTime> list;
  for (const auto& [purpose, time] : out) {
    list.push_back(time);
  }
  return list;
}

}  // namespace

std::vector<StepLimit> limits_of(const StepFigures& figures) {
  std::array<std::pair<Nanoseconds, StepLimit>, 4> parts{
      {{figures.compute, StepLimit::kCompute},
       {figures.exposed_comm, StepLimit::kLinks},
       {figures.exposed_copy, StepLimit::kCopies},
       {figures.idle, StepLimit::kHost}}};
  std::ranges::stable_sort(parts, {}, [](const auto& each) { return -each.first; });
  std::vector<StepLimit> out;
  for (const auto& [time, limit] : parts) {
    if (static_cast<double>(time) >= kLeastShare * static_cast<double>(figures.duration())) {
      out.push_back(limit);
    }
  }
  return out;
}

std::string_view name_of(StepLimit limit) {
  constexpr std::array<std::string_view, 5> kNames{"compute", "links", "copies", "host", "memory"};
  return kNames[static_cast<size_t>(limit)];
}

std::vector<MeshReport> mesh_reports(const Scenario& scenario,
                                     const SearchResult& result,
                                     Bytes memory_limit) {
  std::vector<size_t> order;
  for (size_t i = 0; i < result.meshes.size(); ++i) {
    if (result.meshes[i].best) {
      order.push_back(i);
    }
  }
  std::ranges::stable_sort(
      order, {}, [&](size_t i) { return result.meshes[i].best->outcome.figures.duration(); });
  order.resize(std::min(order.size(), kBestMeshes));
  const Target target = limited(scenario.machine->target(), memory_limit);
  Evaluator evaluator(scenario, target);
  std::vector<MeshReport> out;
  for (const size_t i : order) {
    const Found& best = *result.meshes[i].best;
    const Prediction prediction =
        evaluate(scenario_of(best.candidate, scenario), {.communication = true});
    MeshReport& report = out.emplace_back();
    report.mesh = i;
    report.figures = prediction.figures;
    report.purposes = purposes_of(prediction);
    report.limits = limits_of(report.figures);
    if (is_bound_by_memory(best, evaluator)) {
      report.limits.push_back(StepLimit::kMemory);
    }
    report.difference = out.size() == 1 ? "" : difference_of(report, out.front());
  }
  return out;
}

}  // namespace shardlens::sim
