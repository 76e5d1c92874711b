#include "gui/model/tables/group_overlaps.h"

#include <algorithm>

#include <QObject>

#include "gui/model/tables/table_text.h"
#include "profiler/analysis/figures/group_figures.h"

namespace shardlens::gui {
namespace {

// More rows than the first are too small to read.
constexpr size_t kMostGroups = 12;

double share_of_time(Nanoseconds part, Nanoseconds whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

GroupOverlaps group_overlaps(const SelectionContext& selection) {
  const RankData* rank = selection.rank();
  if (rank == nullptr) {
    return {};
  }
  const analysis::IntervalSet window = selection.window();
  std::vector<analysis::GroupFigures> groups = analysis::group_figures(
      analysis::window_groups(rank->trace, rank->timeline, rank->partition, window), rank->timeline,
      rank->partition, window);
  groups.resize(std::min(groups.size(), kMostGroups));
  if (groups.size() < 2) {
    return {};
  }
  GroupOverlaps out;
  out.columns.append(QObject::tr("compute"));
  for (const analysis::GroupFigures& group : groups) {
    out.columns.append(group.name.empty() ? QObject::tr("(not named)") : table_text(group.name));
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    GroupOverlaps::Row& row = out.rows.emplace_back();
    row.group = out.columns[static_cast<qsizetype>(i) + 1];
    row.shares.emplace_back(share_of_time(groups[i].under_compute, groups[i].busy));
    for (size_t k = 0; k < groups.size(); ++k) {
      row.shares.push_back(
          k == i ? std::nullopt : std::optional(share_of_time(groups[i].under[k], groups[i].busy)));
    }
  }
  return out;
}

}  // namespace shardlens::gui
