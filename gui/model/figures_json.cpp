#include "gui/model/figures_json.h"

#include <nlohmann/json.hpp>

#include "profiler/report/figures_json.h"

namespace shardlens::gui {
namespace {

using nlohmann::ordered_json;

ordered_json baseline_json(const std::optional<sim::Baseline>& baseline) {
  return baseline ? ordered_json{{"measured_step_ns", baseline->measured},
                                 {"simulated_step_ns", baseline->simulated},
                                 {"error", baseline->error()}}
                  : ordered_json();
}

ordered_json version_json(const PlanVersion& version) {
  ordered_json out{{"title", version.title.toStdString()},
                   {"machine", version.state.machine.toStdString()}};
  if (!version.error.isEmpty()) {
    out["error"] = version.error.toStdString();
    return out;
  }
  const sim::Prediction& now = version.prediction;
  out["step_ns"] = now.figures.duration();
  out["compute_ns"] = now.figures.compute;
  out["exposed_comm_ns"] = now.figures.exposed_comm;
  out["exposed_copy_ns"] = now.figures.exposed_copy;
  out["idle_ns"] = now.figures.idle;
  out["peak_allocated_bytes"] = now.memory.peak_allocated;
  out["peak_reserved_bytes"] = now.memory.peak_reserved;
  out["baseline"] = baseline_json(now.baseline);
  return out;
}

}  // namespace

std::string figures_json(const RankData* rank, const PlanSession& session) {
  ordered_json out{{"schema", 1}, {"headline", nullptr}};
  if (rank != nullptr) {
    out["headline"] = ordered_json{{"rank", rank->figures.rank}};
    report::put_figures(out["headline"], rank->figures.figures);
  }
  out["versions"] = ordered_json::array();
  for (const PlanVersion& version : session.versions()) {
    out["versions"].push_back(version_json(version));
  }
  out["note"] = session.why().toStdString();
  return out.dump(1) + "\n";
}

}  // namespace shardlens::gui
