#include "gui/model/tables/exposed_table.h"

#include <algorithm>
#include <utility>

#include "gui/model/base/in_window.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/tables/table_text.h"

namespace shardlens::gui {
namespace {

QString optional_duration(const std::optional<Nanoseconds>& value) {
  return value ? durationText(*value) : QStringLiteral("–");
}

double key_of(const std::optional<Nanoseconds>& value) {
  return value ? static_cast<double>(*value) : -1e300;
}

// Explains the cause, and what helps for this kind of collective.
QString meaning_of(const CollectiveSpan& span) {
  const QString means = table_text(explanation_of(*span.cause));
  const std::string_view helps = remedy_of(*span.cause, span.part);
  return helps.empty()
             ? means
             : QObject::tr("%1; what may help: %2").arg(means, in_window(table_text(helps)));
}

}  // namespace

QString part_label(const analysis::Collective& c) {
  const QString kind = label_of(c);
  switch (c.part) {
    case analysis::UnitPart::kAllGatherForward:
      return kind + QStringLiteral(", forward");
    case analysis::UnitPart::kAllGatherBackward:
      return kind + QStringLiteral(", backward");
    default:
      return kind;
  }
}

ExposedTable::ExposedTable(QObject* parent)
    : ColumnTable(
          {{tr("Unit"),
            [this](size_t r) {
              return table_text(unit_label(of().owner_of(list_[r].collective)));
            }},
           {tr("Collective"),
            [this](size_t r) {
              return part_label(of().timeline.collectives[list_[r].collective]);
            }},
           {tr("Step"),
            [this](size_t r) {
              const CollectiveSpan* span = of().span_of(list_[r].collective);
              return span != nullptr && span->step ? QString::number(*span->step)
                                                   : QStringLiteral("–");
            },
            [this](size_t r) {
              const CollectiveSpan* span = of().span_of(list_[r].collective);
              return span != nullptr && span->step ? static_cast<double>(*span->step) : -1.0;
            },
            true},
           {tr("Exposed"), [this](size_t r) { return durationText(list_[r].exposed); },
            [this](size_t r) { return static_cast<double>(list_[r].exposed); }, true,
            tr("Time that did not overlap with compute; the column sums to the headline"),
            Scale::kDuration},
           {tr("Duration"),
            [this](size_t r) {
              return durationText(of().timeline.collectives[list_[r].collective].when.length());
            },
            [this](size_t r) {
              return static_cast<double>(
                  of().timeline.collectives[list_[r].collective].when.length());
            },
            true,
            {},
            Scale::kDuration},
           {tr("Slack"),
            [this](size_t r) { return optional_duration(of().slack_of(list_[r].collective)); },
            [this](size_t r) { return key_of(of().slack_of(list_[r].collective)); }, true,
            tr("Time from its end until it was needed; negative: it ended that much too late"),
            Scale::kDuration},
           {tr("Cause"),
            [this](size_t r) {
              const CollectiveSpan* span = of().span_of(list_[r].collective);
              return span != nullptr && span->cause ? table_text(words_of(*span->cause))
                                                    : QStringLiteral("–");
            }},
           {tr("What it means, what helps"),
            [this](size_t r) {
              const CollectiveSpan* span = of().span_of(list_[r].collective);
              return span != nullptr && span->cause ? meaning_of(*span) : QString();
            }}},
          parent) {
  setTooltip([this](size_t r) {
    const CollectiveSpan* span = of().span_of(list_[r].collective);
    return span != nullptr && span->cause
               ? tr("%1: %2").arg(table_text(words_of(*span->cause)), meaning_of(*span))
               : QString();
  });
}

void ExposedTable::show(RunPointer run, size_t rank, const analysis::IntervalSet& window) {
  run = with_rank(std::move(run), rank);
  if (run != nullptr && run == run_ && rank == rank_ && window == window_) {
    return;  // a reset would lose the view's scroll position and interrupt a double click
  }
  run_ = std::move(run);
  rank_ = rank;
  window_ = window;
  total_ = 0;
  list_.clear();
  if (run_ != nullptr) {
    list_ = exposed_within(of(), window);
  }
  for (const ExposedCollective& each : list_) {
    total_ += each.exposed;
  }
  reset(list_.size());
}

Selection::Item ExposedTable::itemAt(const QModelIndex& index) const {
  return {rank_, Lane::Source::kCollectives, list_[rowAt(index)].collective};
}

QModelIndex ExposedTable::indexOfCollective(uint32_t collective) const {
  const auto found =
      std::find_if(list_.begin(), list_.end(),
                   [collective](const ExposedCollective& r) { return r.collective == collective; });
  return found == list_.end() ? QModelIndex() : indexOf(static_cast<size_t>(found - list_.begin()));
}

}  // namespace shardlens::gui
