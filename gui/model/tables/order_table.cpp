#include "gui/model/tables/order_table.h"

#include <algorithm>
#include <utility>

#include "gui/model/base/time_axis.h"
#include "gui/model/details/missing_data.h"
#include "gui/model/tables/table_text.h"

namespace shardlens::gui {
namespace {

QString entry_text(const std::vector<analysis::OrderEntry>& list, size_t row) {
  return row < list.size() ? QString::fromStdString(to_string(list[row])) : QStringLiteral("–");
}

// Says whether a prefetch issued the collective if that is where the two lists differ.
QString entry_text(const std::vector<analysis::OrderEntry>& list,
                   const std::vector<analysis::OrderEntry>& other,
                   size_t row) {
  if (row >= list.size() || row >= other.size() || same_issue(list[row], other[row])) {
    return entry_text(list, row);
  }
  return QString::fromStdString(analysis::Difference{0, 0, list[row], other[row]}.expected_words());
}

bool same_at(const std::vector<analysis::OrderEntry>& a,
             const std::vector<analysis::OrderEntry>& b,
             size_t row) {
  return row < a.size() && row < b.size() ? same_issue(a[row], b[row])
                                          : row >= a.size() && row >= b.size();
}

bool differs(const analysis::StepOrder& order, size_t row) {
  return (!order.planned.empty() && !same_at(order.planned, order.issued, row)) ||
         (!order.issued.empty() && !order.started.empty() &&
          !same_at(order.issued, order.started, row));
}

}  // namespace

OrderTable::OrderTable(QObject* parent)
    : ColumnTable(
          {{tr("#"), [](size_t r) { return QString::number(r + 1); },
            [](size_t r) { return static_cast<double>(r); }, true},
           {tr("Planned"),
            [this](size_t r) { return entry_text(order_->planned, order_->issued, r); }, nullptr,
            false, tr("The order that the schedule derives from the plan and its workload")},
           {tr("Issued"),
            [this](size_t r) { return entry_text(order_->issued, order_->planned, r); }, nullptr,
            false, tr("The order in which the host issued them")},
           {tr("Started"), [this](size_t r) { return entry_text(order_->started, r); }, nullptr,
            false, tr("The order in which they started on the communicator")},
           {tr("Agree"),
            [this](size_t r) { return differs(*order_, r) ? tr("✗ differ") : tr("✓"); }}},
          parent) {
  setEmphasis([this](size_t r) { return differs(*order_, r); });
}

void OrderTable::show(RunPointer run, size_t rank, size_t step) {
  run = with_rank(std::move(run), rank);
  if (run != nullptr && run == run_ && rank == rank_ && step == step_) {
    return;
  }
  run_ = std::move(run);
  rank_ = rank;
  step_ = step;
  order_ = nullptr;
  verdict_ = run_ == nullptr ? QString() : why_no_order(*run_->ranks[rank]);
  if (run_ != nullptr && step < run_->ranks[rank]->orders.size()) {
    order_ = &run_->ranks[rank]->orders[step];
  }
  if (order_ == nullptr) {
    reset(0);
    return;
  }
  const size_t rows =
      std::max({order_->planned.size(), order_->issued.size(), order_->started.size()});
  if (order_->issued.empty()) {
    verdict_ = why_no_order(*run_->ranks[rank]);
  } else {
    size_t first = 0;
    while (first < rows && !differs(*order_, first)) {
      ++first;
    }
    verdict_ =
        first == rows
            ? tr("Step %1: planned, issued and started agree, %2%3.")
                  .arg(order_->step)
                  .arg(countText(static_cast<qlonglong>(rows), tr("collective"), tr("collectives")),
                       order_->planned.empty() ? tr("; no plan to compare with") : QString())
            : tr("Step %1: the orders differ first at #%2.").arg(order_->step).arg(first + 1);
  }
  reset(rows);
}

std::optional<std::string> OrderTable::unitAt(const QModelIndex& index) const {
  const size_t row = rowAt(index);
  for (const auto* list : {&order_->issued, &order_->started, &order_->planned}) {
    if (row < list->size()) {
      return (*list)[row].unit;
    }
  }
  return std::nullopt;
}

// If the row's entry is the n-th one with its kind and unit in the list, its collective is the n-th
// one with that kind and unit in the step, by start. (`issued` and `started` list only collectives
// with actions.)
std::optional<Selection::Item> OrderTable::itemAt(const QModelIndex& index) const {
  const size_t row = rowAt(index);
  const auto& list = row < order_->started.size() ? order_->started : order_->issued;
  if (row >= list.size() || step_ >= run_->ranks[rank_]->figures.steps.size()) {
    return std::nullopt;
  }
  auto alike = std::count(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(row), list[row]);
  const RankData& rank = *run_->ranks[rank_];
  const analysis::Interval window = rank.figures.steps[step_].window;
  for (uint32_t i = 0; i < rank.timeline.collectives.size(); ++i) {
    const analysis::Collective& c = rank.timeline.collectives[i];
    if (c.when.start >= window.start && c.when.start < window.end && c.kind == list[row].kind &&
        rank.owner_of(i) == list[row].unit && alike-- == 0) {
      return Selection::Item{rank_, Lane::Source::kCollectives, i};
    }
  }
  return std::nullopt;
}

}  // namespace shardlens::gui
