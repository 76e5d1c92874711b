#include "cli/results/search_meshes.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "core/base/format_bytes.h"
#include "core/base/show.h"
#include "core/plan/plan_mesh_json.h"
#include "sim/search/meshes.h"

namespace shardlens::cli {
namespace {

using nlohmann::ordered_json;

constexpr size_t kLongestNames = 120;

// Why a mesh has no plan; "": it has one.
std::string reason_of(const sim::MeshResult& mesh) {
  switch (mesh.end) {
    case sim::MeshEnd::kSearched:
      return "";
    case sim::MeshEnd::kRefused:
      return mesh.refusal;
    case sim::MeshEnd::kTooLarge:
      return "no plan fits into the memory limit";
    case sim::MeshEnd::kSlower:
      return fmt::format("plans that fit take at least {}, more than the best meshes",
                         report::format_duration(mesh.least));
    case sim::MeshEnd::kNotReached:
      return "the search was stopped before";
  }
  return "";
}

ordered_json report_json(const sim::MeshReport& report) {
  ordered_json purposes = ordered_json::array();
  for (const sim::PurposeTime& each : report.purposes) {
    purposes.push_back(
        {{"purpose", name_of(each.purpose)}, {"busy_ns", each.busy}, {"exposed_ns", each.exposed}});
  }
  ordered_json limits = ordered_json::array();
  for (const sim::StepLimit limit : report.limits) {
    limits.push_back(name_of(limit));
  }
  return {
      {"compute_ns", report.figures.compute},
      {"exposed_comm_ns", report.figures.exposed_comm},
      {"exposed_copy_ns", report.figures.exposed_copy},
      {"idle_ns", report.figures.idle},
      {"communication", std::move(purposes)},
      {"bound_by", std::move(limits)},
      {"difference", report.difference.empty() ? ordered_json() : ordered_json(report.difference)}};
}

ordered_json best_json(const sim::MeshResult& mesh, int64_t ranks) {
  if (!mesh.best) {
    return nullptr;
  }
  const auto& [candidate, outcome] = *mesh.best;
  return {{"name", name_of(candidate, ranks)},
          {"batch", candidate.batch},
          {"accumulate", candidate.accumulate},
          {"step_ns", outcome.figures.duration()},
          {"peak_allocated_bytes", outcome.peak_allocated},
          {"peak_reserved_bytes", outcome.peak_reserved},
          {"exposed_comm_ns", outcome.figures.exposed_comm}};
}

std::string limits_text(const sim::MeshReport& report) {
  std::string out;
  for (const sim::StepLimit limit : report.limits) {
    out += (out.empty() ? "" : ", ") + std::string(name_of(limit));
  }
  return out;
}

// "activations 105.757 ms, gather_parameters 12.000 ms": what is exposed.
std::string exposed_text(const sim::MeshReport& report) {
  std::string out;
  for (const sim::PurposeTime& each : report.purposes) {
    if (each.exposed > 0) {
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name_of(each.purpose),
                         report::format_duration(each.exposed));
    }
  }
  return out;
}

// How many meshes were left out, and why some were refused.
Shown left_out_text(const sim::SearchResult& result) {
  std::map<sim::MeshEnd, size_t> ends;
  std::vector<std::pair<std::string, std::string>> refused;  // reasons, with the names of meshes
  for (const sim::MeshResult& each : result.meshes) {
    ++ends[each.end];
    if (each.end != sim::MeshEnd::kRefused) {
      continue;
    }
    const auto same =
        std::ranges::find(refused, each.refusal, &std::pair<std::string, std::string>::first);
    if (same == refused.end()) {
      refused.emplace_back(each.refusal, sim::name_of(each.mesh));
    } else {
      same->second += "; " + sim::name_of(each.mesh);
    }
  }
  const size_t all = result.meshes.size();
  Shown out =
      show("{} mesh{}: {} with a plan", all, all == 1 ? "" : "es", ends[sim::MeshEnd::kSearched]);
  for (const auto& [end, what] :
       {std::pair{sim::MeshEnd::kSlower, "slower than these by a lower bound"},
        {sim::MeshEnd::kTooLarge, "too large"},
        {sim::MeshEnd::kRefused, "refused"},
        {sim::MeshEnd::kNotReached, "not reached"}}) {
    out += ends[end] > 0 ? show(", {} {}", ends[end], what) : Shown();
  }
  out += "\n";
  for (const auto& [why, names] : refused) {
    out += show("refused  {} ({})\n", why, elided(names, kLongestNames));
  }
  return out;
}

}  // namespace

ordered_json meshes_json(const sim::SearchResult& result,
                         const std::vector<sim::MeshReport>& reports,
                         int64_t ranks) {
  ordered_json out = ordered_json::array();
  for (size_t i = 0; i < result.meshes.size(); ++i) {
    const sim::MeshResult& mesh = result.meshes[i];
    const std::string reason = reason_of(mesh);
    const auto report = std::ranges::find(reports, i, &sim::MeshReport::mesh);
    out.push_back({{"mesh", plan::every_axis_json(mesh.mesh)},
                   {"status", name_of(mesh.end)},
                   {"reason", reason.empty() ? ordered_json() : ordered_json(reason)},
                   {"samples", mesh.samples},
                   {"candidates", mesh.all},
                   {"evaluated", mesh.evaluated},
                   {"pruned", mesh.pruned},
                   {"slower", mesh.slower},
                   {"bound_ns", mesh.least > 0 ? ordered_json(mesh.least) : ordered_json()},
                   {"best", best_json(mesh, ranks)},
                   {"time", report == reports.end() ? ordered_json() : report_json(*report)}});
  }
  return out;
}

Shown meshes_text(const sim::SearchResult& result,
                  const std::vector<sim::MeshReport>& reports,
                  report::Style style) {
  report::Table table({{"mesh", report::Align::kLeft},
                       {"step"},
                       {"compute"},
                       {"exposed", report::Align::kLeft},
                       {"reserved"},
                       {"bound by", report::Align::kLeft},
                       {"against the first", report::Align::kLeft}});
  for (const sim::MeshReport& each : reports) {
    const sim::MeshResult& mesh = result.meshes[each.mesh];
    table.row({sim::name_of(mesh.mesh), report::format_duration(each.figures.duration()),
               report::format_duration(each.figures.compute), exposed_text(each),
               format_bytes(mesh.best->outcome.peak_reserved), limits_text(each), each.difference});
  }
  Shown out = table.render(style);
  out += left_out_text(result);
  for (const std::string& each : result.not_tried) {
    out += show("not tried  {}\n", each);
  }
  return out;
}

}  // namespace shardlens::cli
