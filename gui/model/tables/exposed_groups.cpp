#include "gui/model/tables/exposed_groups.h"

#include <algorithm>
#include <utility>

#include "core/base/median.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/run/exposed_list.h"
#include "gui/model/tables/exposed_table.h"
#include "gui/model/tables/table_text.h"

namespace shardlens::gui {

std::vector<ColumnTable::Column> ExposedGroups::columns(const ExposedGroups* of) {
  const auto row = [of](size_t r) -> const Row& { return of->list_[r]; };
  return {
      {tr("Unit"), [row](size_t r) { return table_text(unit_label(row(r).owner)); }},
      {tr("Collective"), [row](size_t r) { return row(r).kind; }},
      {tr("Exposed"), [row](size_t r) { return durationText(row(r).exposed); },
       [row](size_t r) { return static_cast<double>(row(r).exposed); }, true,
       tr("Time that did not overlap with compute, of all steps shown; the column sums to the "
          "exposed time of the ranks shown"),
       Scale::kDuration},
      {tr("Count"), [row](size_t r) { return QString::number(row(r).count); },
       [row](size_t r) { return static_cast<double>(row(r).count); }, true,
       tr("Collectives with exposed time")},
      {tr("Worst"), [row](size_t r) { return durationText(row(r).worst_exposed); },
       [row](size_t r) { return static_cast<double>(row(r).worst_exposed); }, true,
       tr("The most exposed time of one collective; a click on the row selects it"),
       Scale::kDuration},
      {tr("On rank"),
       [of, row](size_t r) {
         return QString::number(of->run_->ranks[row(r).worst.rank]->figures.rank);
       },
       [row](size_t r) { return static_cast<double>(row(r).worst.rank); }, true,
       tr("The rank of the worst one")},
      {tr("Arrival spread"),
       [row](size_t r) {
         return row(r).spread == kNoSpread ? QStringLiteral("–") : durationText(row(r).spread);
       },
       [row](size_t r) { return static_cast<double>(row(r).spread); }, true,
       tr("From the first rank's start of a collective to the last one's; the median of those that "
          "were matched across the ranks"),
       Scale::kDuration},
  };
}

ExposedGroups::ExposedGroups(QObject* parent) : ColumnTable(columns(this), parent) {}

void ExposedGroups::takeSpreads() {
  spreads_.clear();
  for (const auto& rank : run_->ranks) {
    spreads_.emplace_back(rank->timeline.collectives.size(), kNoSpread);
  }
  for (const auto& rank : run_->ranks) {
    for (const analysis::Collective& each : rank->timeline.collectives) {
      if (each.last_start) {
        Nanoseconds& spread = spreads_[each.last_rank][each.last_index];
        spread = std::max(spread, *each.last_start - each.when.start);
      }
    }
  }
}

void ExposedGroups::add(size_t rank, uint32_t collective, Nanoseconds exposed) {
  const RankData& of = *run_->ranks[rank];
  const analysis::Collective& each = of.timeline.collectives[collective];
  const auto [at, first] =
      rows_.try_emplace({of.owner_of(collective), part_label(each)}, list_.size());
  if (first) {
    list_.emplace_back();
    list_.back().owner = at->first.first;
    list_.back().kind = at->first.second;
  }
  Row& row = list_[at->second];
  ++row.count;
  row.exposed += exposed;
  total_ += exposed;
  if (exposed > row.worst_exposed) {
    row.worst_exposed = exposed;
    row.worst = {rank, Lane::Source::kCollectives, collective};
  }
  if (each.last_start) {
    row.matched.emplace_back(each.last_rank, each.last_index);
  }
}

// The median over collectives, each of which counts once although several ranks list it; of an even
// number the lower one.
void ExposedGroups::setSpread(Row& row) const {
  std::sort(row.matched.begin(), row.matched.end());
  row.matched.erase(std::unique(row.matched.begin(), row.matched.end()), row.matched.end());
  std::vector<Nanoseconds> spreads;
  for (const auto& [rank, index] : row.matched) {
    spreads.push_back(spreads_[rank][index]);
  }
  row.spread = spreads.empty() ? kNoSpread : lower_median(spreads);
}

void ExposedGroups::show(const SelectionContext& selection, bool all_ranks) {
  if (selection.run() != run_) {
    run_ = selection.run();
    spreads_.clear();
    if (run_ != nullptr) {
      takeSpreads();
    }
  }
  rows_.clear();
  list_.clear();
  total_ = 0;
  for (size_t rank = 0; run_ != nullptr && rank < run_->ranks.size(); ++rank) {
    if (!all_ranks && rank != selection.current().rank) {
      continue;
    }
    for (const ExposedCollective& each :
         exposed_within(*run_->ranks[rank], selection.windowOf(rank))) {
      add(rank, each.collective, each.exposed);
    }
  }
  for (Row& row : list_) {
    setSpread(row);
  }
  std::stable_sort(list_.begin(), list_.end(),
                   [](const Row& a, const Row& b) { return a.exposed > b.exposed; });
  reset(list_.size());
}

void ExposedGroups::clear() {
  run_.reset();
  spreads_.clear();
  rows_.clear();
  list_.clear();
  total_ = 0;
  reset(0);
}

QModelIndex ExposedGroups::indexOf(const Selection::Item& collective) const {
  if (run_ == nullptr) {
    return {};
  }
  const RankData& of = *run_->ranks[collective.rank];
  const std::string owner = of.owner_of(collective.ref);
  const QString kind = part_label(of.timeline.collectives[collective.ref]);
  const auto found = std::ranges::find_if(
      list_, [&](const Row& row) { return row.owner == owner && row.kind == kind; });
  return found == list_.end() ? QModelIndex()
                              : ColumnTable::indexOf(static_cast<size_t>(found - list_.begin()));
}

}  // namespace shardlens::gui
