#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "profiler/analysis/analysis.h"

// Parts of `analyze --json` other than units and order; docs/reference/metrics.md lists the keys.
namespace shardlens::report {

// The size of a message; null: not in the trace.
[[nodiscard]] nlohmann::ordered_json message_json(Bytes bytes);
[[nodiscard]] nlohmann::ordered_json kind_json(const analysis::KindFigures& kind);
// `communication` of a rank, measured or simulated.
[[nodiscard]] nlohmann::ordered_json communication_json(
    const std::vector<analysis::CommunicationFigures>& communication);
// `attribution` of a rank: how the owners of captured work were found.
[[nodiscard]] nlohmann::ordered_json attribution_json(
    const std::vector<analysis::AttributionFigures>& attribution);
[[nodiscard]] nlohmann::ordered_json idle_json(const analysis::IdleFigures& idle);
// Adds "launch", "memory" and, if the analysis has critical paths, "critical_path".
void put_device_sections(nlohmann::ordered_json& rank, const analysis::RankAnalysis& analysis);
// Adds "clocks", "stragglers" and "matched", which compare several ranks.
void put_matching(nlohmann::ordered_json& out, const analysis::Matching& matching);

// Adds span_ns and its parts, and the figures of each kind of collective.
void put_figures(nlohmann::ordered_json& out, const analysis::WindowFigures& figures);

}  // namespace shardlens::report
