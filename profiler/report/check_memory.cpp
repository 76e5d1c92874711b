#include "profiler/report/check_memory.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "core/base/format_bytes.h"
#include "profiler/report/optional_values.h"

namespace shardlens::report {
namespace {

using check::MemoryResult;
using Json = nlohmann::ordered_json;

constexpr size_t kMostPeaks = 12;

std::optional<Bytes> change_of(const MemoryResult& m) {
  return m.baseline ? std::optional(m.candidate.peak - m.baseline->peak) : std::nullopt;
}

std::string_view verdict_of(const MemoryResult& m) {
  if (m.allowed) {
    return name_of(m.verdict());
  }
  const std::optional<Bytes> change = change_of(m);
  return !change ? "unknown" : *change == 0 ? "equal" : *change > 0 ? "higher" : "lower";
}

std::string shown_bytes(const std::optional<Bytes>& bytes) {
  return bytes ? format_bytes(*bytes) : "-";
}

std::string shown_change(const std::optional<Bytes>& bytes) {
  return !bytes ? "-" : (*bytes < 0 ? "-" : "+") + format_bytes(*bytes < 0 ? -*bytes : *bytes);
}

MemoryRow row_of(const MemoryResult& m) {
  const auto before = [&](const auto& value) -> std::optional<Bytes> {
    return m.baseline ? value(*m.baseline) : std::nullopt;
  };
  return {fmt::format("rank {}, {}", m.candidate.rank, m.candidate.device),
          shown_bytes(before([](const auto& peak) { return std::optional(peak.peak); })),
          format_bytes(m.candidate.peak),
          shown_change(change_of(m)),
          shown_bytes(before([](const auto& peak) { return peak.kept; })),
          shown_bytes(m.candidate.kept),
          shown_bytes(m.allowed),
          std::string(verdict_of(m)),
          m.verdict() == check::Verdict::kRegression};
}

}  // namespace

Json memory_json(const std::vector<MemoryResult>& results) {
  Json out = Json::array();
  for (const MemoryResult& m : results) {
    out.push_back({{"rank", m.candidate.rank},
                   {"device", m.candidate.device},
                   {"gates", m.allowed.has_value()},
                   {"baseline_bytes", m.baseline ? Json(m.baseline->peak) : Json(nullptr)},
                   {"candidate_bytes", m.candidate.peak},
                   {"baseline_kept_bytes", m.baseline ? or_null(m.baseline->kept) : Json(nullptr)},
                   {"candidate_kept_bytes", or_null(m.candidate.kept)},
                   {"allowed_bytes", or_null(m.allowed)},
                   {"verdict", verdict_of(m)}});
  }
  return out;
}

std::vector<MemoryRow> memory_rows(const std::vector<MemoryResult>& results) {
  std::vector<MemoryResult> sorted = results;
  std::ranges::stable_sort(sorted, std::greater{}, [](const MemoryResult& m) {
    return m.candidate.peak - (m.allowed ? *m.allowed : m.baseline ? m.baseline->peak : 0);
  });
  std::vector<MemoryRow> rows;
  for (size_t i = 0; i < std::min(sorted.size(), kMostPeaks); ++i) {
    rows.push_back(row_of(sorted[i]));
  }
  return rows;
}

Shown memory_table(const std::vector<MemoryResult>& results, Style style) {
  Table table({{"peak memory", Align::kLeft},
               {"baseline"},
               {"candidate"},
               {"change"},
               {"kept, baseline"},
               {"kept, candidate"},
               {"allowed"},
               {"verdict", Align::kLeft}});
  for (const MemoryRow& row : memory_rows(results)) {
    table.row({row.place, row.baseline, row.candidate, row.change, row.kept_baseline,
               row.kept_candidate, row.allowed, row.verdict});
    if (row.above) {
      table.highlight();
    }
  }
  return table.render(style);
}

std::vector<std::string> memory_above(const std::vector<MemoryResult>& results) {
  std::vector<std::string> lines;
  for (const MemoryRow& row : memory_rows(results)) {
    if (row.above) {
      lines.push_back(fmt::format("{}: {} (baseline: {}; allowed: {})", row.place, row.candidate,
                                  row.baseline, row.allowed));
    }
  }
  return lines;
}

}  // namespace shardlens::report
