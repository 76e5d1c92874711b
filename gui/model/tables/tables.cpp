#include "gui/model/tables/tables.h"

#include <algorithm>
#include <utility>

#include "gui/model/base/time_axis.h"

namespace shardlens::gui {
namespace {

QString text(std::string_view view) {
  return QString::fromUtf8(view.data(), static_cast<qsizetype>(view.size()));
}

// `run` if it has the rank, else nullptr.
RunPointer with_rank(RunPointer run, size_t rank) {
  return run != nullptr && rank < run->ranks.size() ? std::move(run) : nullptr;
}

QString optional_duration(const std::optional<Nanoseconds>& value) {
  return value ? durationText(*value) : QStringLiteral("–");
}

double key_of(const std::optional<Nanoseconds>& value) {
  return value ? static_cast<double>(*value) : -1e300;
}

// "all-gather, forward"
QString part_label(const analysis::Collective& c) {
  // Kinds without a lane of their own keep their name: send_recv, broadcast, …
  const QString kind = c.kind && kind_of(c.kind) == Kind::kOtherComm
                           ? text(name_of(*c.kind))
                           : QString::fromUtf8(label_of(kind_of(c.kind)));
  switch (c.part) {
    case analysis::UnitPart::kAllGatherForward:
      return kind + QStringLiteral(", forward");
    case analysis::UnitPart::kAllGatherBackward:
      return kind + QStringLiteral(", backward");
    default:
      return kind;
  }
}

}  // namespace

ExposedTable::ExposedTable(QObject* parent)
    : ColumnTable(
          {{tr("Unit"),
            [this](size_t r) { return text(unit_label(of().owner_of(list_[r].collective))); }},
           {tr("Collective"),
            [this](size_t r) {
              return part_label(of().timeline.collectives[list_[r].collective]);
            }},
           {tr("Step"),
            [this](size_t r) {
              const analysis::UnitSpan* span = of().span_of(list_[r].collective);
              return span != nullptr && span->step ? QString::number(*span->step)
                                                   : QStringLiteral("–");
            },
            [this](size_t r) {
              const analysis::UnitSpan* span = of().span_of(list_[r].collective);
              return span != nullptr && span->step ? static_cast<double>(*span->step) : -1.0;
            },
            true},
           {tr("Exposed"), [this](size_t r) { return durationText(list_[r].exposed); },
            [this](size_t r) { return static_cast<double>(list_[r].exposed); }, true,
            tr("Time that did not overlap with compute; the column sums to the headline")},
           {tr("Duration"),
            [this](size_t r) {
              return durationText(of().timeline.collectives[list_[r].collective].when.length());
            },
            [this](size_t r) {
              return static_cast<double>(
                  of().timeline.collectives[list_[r].collective].when.length());
            },
            true},
           {tr("Slack"),
            [this](size_t r) {
              const analysis::UnitSpan* span = of().span_of(list_[r].collective);
              return optional_duration(span != nullptr ? span->slack() : std::nullopt);
            },
            [this](size_t r) {
              const analysis::UnitSpan* span = of().span_of(list_[r].collective);
              return key_of(span != nullptr ? span->slack() : std::nullopt);
            },
            true,
            tr("Time from its end until it was needed; negative: it ended that much too late")},
           {tr("Cause"),
            [this](size_t r) {
              const analysis::UnitSpan* span = of().span_of(list_[r].collective);
              return span != nullptr && span->cause ? text(name_of(*span->cause))
                                                    : QStringLiteral("–");
            }},
           {tr("What it means, what helps"),
            [this](size_t r) {
              const analysis::UnitSpan* span = of().span_of(list_[r].collective);
              return span != nullptr && span->cause ? text(explanation_of(*span->cause))
                                                    : QString();
            }}},
          parent) {
  setTooltip([this](size_t r) {
    const analysis::UnitSpan* span = of().span_of(list_[r].collective);
    return span != nullptr && span->cause
               ? tr("%1: %2").arg(text(name_of(*span->cause)), text(explanation_of(*span->cause)))
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
    for (const analysis::Partition::Owned& part : of().partition.exposed_by_collective()) {
      const Nanoseconds exposed = length_within(window, part.when);
      if (exposed > 0) {
        if (list_.empty() || list_.back().collective != part.collective) {
          list_.push_back({part.collective, 0});
        }
        list_.back().exposed += exposed;
        total_ += exposed;
      }
    }
    std::sort(list_.begin(), list_.end(), [](const Row& a, const Row& b) {
      return std::pair(b.exposed, a.collective) < std::pair(a.exposed, b.collective);
    });
  }
  reset(list_.size());
}

Selection::Item ExposedTable::itemAt(const QModelIndex& index) const {
  return {rank_, Lane::Source::kCollectives, list_[rowAt(index)].collective};
}

QModelIndex ExposedTable::indexOfCollective(uint32_t collective) const {
  const auto found = std::find_if(list_.begin(), list_.end(), [collective](const Row& r) {
    return r.collective == collective;
  });
  return found == list_.end() ? QModelIndex() : indexOf(static_cast<size_t>(found - list_.begin()));
}

namespace {

QString entry_text(const std::vector<analysis::OrderEntry>& list, size_t row) {
  return row < list.size() ? QString::fromStdString(to_string(list[row])) : QStringLiteral("–");
}

bool same_at(const std::vector<analysis::OrderEntry>& a,
             const std::vector<analysis::OrderEntry>& b,
             size_t row) {
  return row < a.size() && row < b.size() ? a[row] == b[row] : row >= a.size() && row >= b.size();
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
           {tr("Planned"), [this](size_t r) { return entry_text(order_->planned, r); }, nullptr,
            false, tr("The order that the schedule derives from the plan and its workload")},
           {tr("Issued"), [this](size_t r) { return entry_text(order_->issued, r); }, nullptr,
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
  verdict_ = tr("The trace has no steps, so there is no order to compare.");
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
    verdict_ = tr(
        "The trace does not contain what the schedule issued (PyTorch's profiler does not record "
        "it).");
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

EventTable::EventTable(QObject* parent)
    : ColumnTable(
          {{tr("Start"),
            [this](size_t r) {
              const RankData& rank = *run_->ranks[rank_];
              const trace::Event& e = rank.trace.events[r];
              return timeText(run_->shown(rank, {e.start, e.start}).start, 1e3);
            },
            [this](size_t r) {
              return static_cast<double>(run_->ranks[rank_]->trace.events[r].start);
            },
            true},
           {tr("Duration"),
            [this](size_t r) { return durationText(run_->ranks[rank_]->trace.events[r].duration); },
            [this](size_t r) {
              return static_cast<double>(run_->ranks[rank_]->trace.events[r].duration);
            },
            true},
           {tr("Name"),
            [this](size_t r) {
              const trace::Trace& trace = run_->ranks[rank_]->trace;
              return text(trace.name(trace.events[r]));
            }},
           {tr("Category"),
            [this](size_t r) {
              const trace::Trace& trace = run_->ranks[rank_]->trace;
              return text(trace.category(trace.events[r]));
            }},
           {tr("Thread or stream"),
            [this](size_t r) {
              const trace::Trace& trace = run_->ranks[rank_]->trace;
              const trace::Track& track = trace.tracks[trace.events[r].track];
              return track.name != trace::kEmptyString ? text(trace.strings.view(track.name))
                                                       : QString::number(track.tid);
            }}},
          parent) {}

void EventTable::show(RunPointer run,
                      size_t rank,
                      const std::optional<analysis::Interval>& window,
                      const QString& filter) {
  run = with_rank(std::move(run), rank);
  if (run != nullptr && run == run_ && rank == rank_ && window == window_ && filter == filter_) {
    return;
  }
  run_ = std::move(run);
  rank_ = rank;
  window_ = window;
  filter_ = filter;
  if (run_ == nullptr) {
    reset(0);
    return;
  }
  const trace::Trace& trace = run_->ranks[rank_]->trace;
  // There are few names but many events, so each name is matched once.
  std::vector<int8_t> fits(trace.strings.size(), -1);
  const auto fits_name = [&](const trace::Event& event) {
    int8_t& known = fits[event.name];
    if (known < 0) {
      known =
          filter.isEmpty() || text(trace.name(event)).contains(filter, Qt::CaseInsensitive) ? 1 : 0;
    }
    return known == 1;
  };
  std::vector<uint32_t> rows;
  for (uint32_t i = 0; i < trace.events.size(); ++i) {
    const trace::Event& event = trace.events[i];
    const bool inside = !window || (event.start < window->end && event.end() >= window->start);
    if (inside && fits_name(event)) {
      rows.push_back(i);
    }
  }
  reset(std::move(rows));
}

DiagnosticTable::DiagnosticTable(QObject* parent)
    : ColumnTable(
          {{tr("Severity"),
            [this](size_t r) { return text(name_of(run_->analysis.diagnostics[r].severity)); }},
           {tr("Count"),
            [this](size_t r) { return QString::number(run_->analysis.diagnostics[r].count); },
            [this](size_t r) { return static_cast<double>(run_->analysis.diagnostics[r].count); },
            true},
           {tr("Message"),
            [this](size_t r) {
              return QString::fromStdString(run_->analysis.diagnostics[r].message);
            }}},
          parent) {
  setTooltip(
      [this](size_t r) { return QString::fromStdString(run_->analysis.diagnostics[r].message); });
  setEmphasis([this](size_t r) {
    return run_->analysis.diagnostics[r].severity != trace::Severity::kNote;
  });
}

void DiagnosticTable::show(RunPointer run) {
  run_ = std::move(run);
  reset(run_ == nullptr ? 0 : run_->analysis.diagnostics.size());
}

}  // namespace shardlens::gui
