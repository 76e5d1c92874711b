// For each pair of a rank's process groups, and for each group and compute, how long both ran.
#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "core/base/show.h"
#include "profiler/analysis/analysis.h"
#include "profiler/report/analysis_report.h"
#include "profiler/report/csv.h"
#include "profiler/report/table.h"

namespace shardlens::report {
namespace {

struct Overlap {  // of a group with compute or with another group
  std::string group, with;
  Nanoseconds both = 0, of_group = 0, of_other = 0;
};

std::string group_words(const std::string& name) {
  return name.empty() ? "(not named)" : name;
}

// The busiest groups first; for each group its overlap with compute, then with the groups after it.
std::vector<Overlap> overlaps_of(const analysis::RankAnalysis& rank) {
  std::vector<Overlap> out;
  for (size_t i = 0; i < rank.groups.size(); ++i) {
    const analysis::GroupFigures& group = rank.groups[i];
    out.push_back({group_words(group.name), "compute", group.under_compute, group.busy,
                   rank.figures.compute});
    for (size_t k = i + 1; k < group.under.size(); ++k) {
      const analysis::GroupFigures& other = rank.groups[k];
      out.push_back({group_words(group.name), group_words(other.name), group.under[k], group.busy,
                     other.busy});
    }
  }
  return out;
}

std::string share_words(Nanoseconds part, Nanoseconds whole) {
  return whole == 0 ? "-"
                    : fmt::format("{:.1f} %",
                                  100 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace

Shown overlaps_text(const analysis::Analysis& analysis, std::optional<size_t> top, Style style) {
  Table table({{"rank"},
               {"group", Align::kLeft},
               {"with", Align::kLeft},
               {"both ran"},
               {"of the group"},
               {"of the other"}});
  size_t left = 0;
  for (const analysis::RankAnalysis& rank : analysis.ranks) {
    std::vector<Overlap> rows = overlaps_of(rank);
    if (top && rows.size() > *top) {
      std::ranges::stable_sort(rows, std::ranges::greater(), &Overlap::both);
      left += rows.size() - *top;
      rows.resize(*top);
    }
    for (const Overlap& each : rows) {
      table.row({std::to_string(rank.rank), each.group, each.with, format_duration(each.both),
                 share_words(each.both, each.of_group), share_words(each.both, each.of_other)});
    }
  }
  if (table.rows() == 0) {
    return show("no communication of process groups\n");
  }
  return table.render(style) + (left == 0 ? Shown() : show("({} more pairs)\n", left));
}

std::string overlaps_csv(const analysis::Analysis& analysis) {
  constexpr std::array<std::string_view, 6> kColumns{"rank",    "group",    "with",
                                                     "both_ns", "group_ns", "other_ns"};
  Csv out(kColumns);
  for (const analysis::RankAnalysis& rank : analysis.ranks) {
    for (const Overlap& each : overlaps_of(rank)) {
      out.row(rank.rank, each.group, each.with, each.both, each.of_group, each.of_other);
    }
  }
  return out.take();
}

}  // namespace shardlens::report
