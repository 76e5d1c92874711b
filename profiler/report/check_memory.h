#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/shown.h"
#include "profiler/check/check.h"
#include "profiler/report/table.h"

namespace shardlens::report {

// The peaks of memory in the outputs of `check` and `compare`.

// Every peak; docs/use/gate-ci.md.
[[nodiscard]] nlohmann::ordered_json memory_json(const std::vector<check::MemoryResult>& results);

// One peak in words; "-": not known.
struct MemoryRow {
  std::string place;  // "rank 0, cuda:0"
  std::string baseline, candidate, change, kept_baseline, kept_candidate, allowed, verdict;
  bool above = false;  // above what is allowed
};
// At most a dozen: those that are highest above what is allowed, or nearest to it.
[[nodiscard]] std::vector<MemoryRow> memory_rows(const std::vector<check::MemoryResult>& results);
[[nodiscard]] Shown memory_table(const std::vector<check::MemoryResult>& results, Style style);
// A line for each of these rows that is above what is allowed.
[[nodiscard]] std::vector<std::string> memory_above(
    const std::vector<check::MemoryResult>& results);

}  // namespace shardlens::report
