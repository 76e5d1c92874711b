#include "gui/model/tables/ranks_table.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "gui/model/base/time_axis.h"
#include "gui/model/details/missing_data.h"

namespace shardlens::gui {
std::vector<ColumnTable::Column> RanksTable::columns(const RanksTable* of) {
  const auto row = [of](size_t r) -> const Row& { return of->list_[r]; };
  const auto time = [row](const QString& title, auto&& value, const QString& help) {
    return Column{title,
                  [row, value](size_t r) { return durationText(value(row(r))); },
                  [row, value](size_t r) { return static_cast<double>(value(row(r))); },
                  true,
                  help,
                  Scale::kDuration};
  };
  const auto clock = [of, row](size_t r) -> std::optional<Nanoseconds> {
    const auto& clocks = of->run_->analysis.matching.clocks;
    return row(r).rank < clocks.size() ? std::optional(clocks[row(r).rank].offset) : std::nullopt;
  };
  return {
      {tr("Rank"),
       [of, row](size_t r) { return QString::number(of->run_->ranks[row(r).rank]->figures.rank); },
       [row](size_t r) { return static_cast<double>(row(r).rank); }, true},
      time(
          tr("Others waited"), [](const Row& r) { return r.held_up; },
          tr("How long the other ranks waited only for this one, in all steps: its delays after "
             "the last but one rank")),
      {tr("Last"), [row](size_t r) { return QString::number(row(r).last); },
       [row](size_t r) { return static_cast<double>(row(r).last); }, true,
       tr("Collectives of all steps that this rank started last")},
      time(
          tr("Exposed"), [](const Row& r) { return r.figures.exposed_comm; },
          tr("Communication while nothing computes")),
      time(tr("Compute"), [](const Row& r) { return r.figures.compute; }, {}),
      time(
          tr("Copies"), [](const Row& r) { return r.figures.exposed_copy; },
          tr("Copies while there is neither compute nor communication")),
      time(tr("Idle"), [](const Row& r) { return r.figures.idle; }, {}),
      time(
          tr("Time"), [](const Row& r) { return r.figures.duration(); },
          tr("The chosen steps or range: the sum of the four columns before")),
      {tr("Clock"),
       [clock](size_t r) { return clock(r) ? durationText(*clock(r)) : QStringLiteral("–"); },
       [clock](size_t r) { return static_cast<double>(clock(r).value_or(0)); }, true,
       tr("How far the rank's clock is ahead; views subtract it")},
  };
}

RanksTable::RanksTable(QObject* parent) : ColumnTable(columns(this), parent) {}

void RanksTable::show(const SelectionContext& selection) {
  run_ = selection.run();
  list_.clear();
  for (size_t rank = 0; run_ != nullptr && rank < run_->ranks.size(); ++rank) {
    Row row{rank, run_->ranks[rank]->live.within(selection.windowOf(rank)), 0, 0};
    const auto& stragglers = run_->analysis.matching.stragglers;
    if (rank < stragglers.size()) {
      row.held_up = stragglers[rank].held_up;
      row.last = stragglers[rank].last;
    }
    list_.push_back(row);
  }
  std::stable_sort(list_.begin(), list_.end(), [](const Row& a, const Row& b) {
    return std::pair(a.held_up, a.figures.exposed_comm) >
           std::pair(b.held_up, b.figures.exposed_comm);
  });
  reset(list_.size());
}

QModelIndex RanksTable::indexOfRank(size_t rank) const {
  const auto found = std::ranges::find(list_, rank, &Row::rank);
  return found == list_.end() ? QModelIndex() : indexOf(static_cast<size_t>(found - list_.begin()));
}

QString RanksTable::summary() const {
  if (list_.empty()) {
    return {};
  }
  Nanoseconds exposed = 0;
  int64_t late = 0;  // collectives that one rank started last
  for (const Row& row : list_) {
    exposed += row.figures.exposed_comm;
    late += row.last;
  }
  QString out = tr("%1 exposed on %2.")
                    .arg(durationText(exposed),
                         countText(static_cast<qlonglong>(list_.size()), tr("rank"), tr("ranks")));
  if (list_.size() < 2) {
    return QStringLiteral("%1 %2").arg(out, why_one_rank(*run_));
  }
  if (run_->analysis.matching.clocks.empty()) {
    return out + tr(" No collective was matched across the ranks, so who was late is not known.");
  }
  if (late == 0) {
    return out + tr(" The ranks started every collective at the same time.");
  }
  const Row& worst = list_.front();
  // In more than half of the collectives; of two ranks, of which one is always last, in more than
  // three quarters.
  const double often = 0.5 + 0.5 / static_cast<double>(list_.size());
  const bool straggler = static_cast<double>(worst.last) > often * static_cast<double>(late);
  return out + (straggler ? tr(" Rank %1 started %2 of %3 collectives last; the others waited %4 "
                               "for it.")
                                .arg(run_->ranks[worst.rank]->figures.rank)
                                .arg(worst.last)
                                .arg(late)
                                .arg(durationText(worst.held_up))
                          : tr(" No rank is the last in most collectives."));
}

}  // namespace shardlens::gui
