#include "gui/model/what_if/window_json.h"

#include <nlohmann/json.hpp>

#include "core/json/json_dump.h"
#include "profiler/report/figures_json.h"
#include "sim/scenario/prediction_json.h"

namespace shardlens::gui {
namespace {

using nlohmann::ordered_json;

ordered_json version_json(const PlanVersion& version) {
  ordered_json out{{"title", version.title.toStdString()},
                   {"machine", version.state.machine.toStdString()}};
  if (!version.error.isEmpty()) {
    out["error"] = version.error.toStdString();
    return out;
  }
  ordered_json figures = sim::prediction_json(version.prediction);
  figures.erase("machine");  // `out` already has the machine as chosen in the window
  out.update(figures);
  return out;
}

}  // namespace

std::string figures_json(const RankData* rank,
                         const PlanSession& session,
                         const ordered_json& views) {
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
  out["views"] = views;
  return plan::json_text(out, 1) + "\n";
}

}  // namespace shardlens::gui
