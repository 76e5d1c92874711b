#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/shown.h"
#include "profiler/report/table.h"
#include "sim/search/mesh_report.h"

namespace shardlens::cli {

// "meshes" of `search --json`: every mesh of the space with its fastest plan, or why it has none.
[[nodiscard]] nlohmann::ordered_json meshes_json(const sim::SearchResult& result,
                                                 const std::vector<sim::MeshReport>& reports,
                                                 int64_t ranks);

// A table of the fastest meshes, how many were left out and why, and what was not tried.
[[nodiscard]] Shown meshes_text(const sim::SearchResult& result,
                                const std::vector<sim::MeshReport>& reports,
                                report::Style style);

}  // namespace shardlens::cli
