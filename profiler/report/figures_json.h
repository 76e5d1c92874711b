#pragma once

#include <nlohmann/json.hpp>

#include "profiler/analysis/analysis.h"

// Parts of `analyze --json` beside figures, units and order; docs/metrics.md has the keys.
namespace shardlens::report {

// Of messages; null: the trace does not tell.
[[nodiscard]] nlohmann::ordered_json message_json(Bytes bytes);
[[nodiscard]] nlohmann::ordered_json kind_json(const analysis::KindFigures& kind);
[[nodiscard]] nlohmann::ordered_json idle_json(const analysis::IdleFigures& idle);
// "launch", "memory" and, where they were asked for, "critical_path".
void put_device_sections(nlohmann::ordered_json& rank, const analysis::RankAnalysis& analysis);
// "clocks", "stragglers" and "matched" of several ranks.
void put_matching(nlohmann::ordered_json& out, const analysis::Matching& matching);

// span_ns and its parts, and the figures of each kind of collective, into `out`.
void put_figures(nlohmann::ordered_json& out, const analysis::Figures& figures);

}  // namespace shardlens::report
