#include "gui/model/tables/event_table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "gui/model/base/time_axis.h"
#include "gui/model/tables/table_text.h"

namespace shardlens::gui {

EventTable::EventTable(QObject* parent)
    : ColumnTable(
          {{tr("Start"),
            [this](size_t r) {
              const RankData& rank = *run_->ranks[rank_];
              const trace::Event& e = rank.trace.events[r];
              return timeText(run_->shown(rank, {e.start, e.start}).start, 1e3);
            },
            [this](size_t r) {
              const RankData& rank = *run_->ranks[rank_];
              const trace::Event& e = rank.trace.events[r];
              return static_cast<double>(run_->shown(rank, {e.start, e.start}).start);
            },
            true,
            {},
            Scale::kInstant},
           {tr("Duration"),
            [this](size_t r) { return durationText(run_->ranks[rank_]->trace.events[r].duration); },
            [this](size_t r) {
              return static_cast<double>(run_->ranks[rank_]->trace.events[r].duration);
            },
            true,
            {},
            Scale::kEvent},
           {tr("Name"),
            [this](size_t r) {
              const trace::Trace& trace = run_->ranks[rank_]->trace;
              return table_text(trace.name(trace.events[r]));
            }},
           {tr("Category"),
            [this](size_t r) {
              const trace::Trace& trace = run_->ranks[rank_]->trace;
              return table_text(trace.category(trace.events[r]));
            }},
           {tr("Thread or stream"),
            [this](size_t r) {
              const trace::Trace& trace = run_->ranks[rank_]->trace;
              return track_name(trace, trace.tracks[trace.events[r].track]);
            }}},
          parent) {}

// PyTorch writes events in no particular order.
void EventTable::sortByStart() {
  const auto& events = run_->ranks[rank_]->trace.events;
  const auto start = [&events](uint32_t i) { return events[i].start; };
  by_start_.resize(events.size());
  std::iota(by_start_.begin(), by_start_.end(), 0U);
  if (!std::ranges::is_sorted(by_start_, {}, start)) {
    std::ranges::stable_sort(by_start_, {}, start);
  }
}

void EventTable::show(RunPointer run, size_t rank, const EventFilter& filter) {
  run = with_rank(std::move(run), rank);
  if (run != nullptr && run == run_ && rank == rank_ && filter == filter_) {
    return;
  }
  const bool same = run == run_ && rank == rank_;
  run_ = std::move(run);
  rank_ = rank;
  filter_ = filter;
  if (run_ == nullptr) {
    by_start_.clear();
    reset(0);
    return;
  }
  if (!same) {
    sortByStart();
  }
  const trace::Trace& trace = run_->ranks[rank_]->trace;
  EventTest test(trace, filter);
  std::vector<uint32_t> rows;
  for (const uint32_t i : by_start_) {
    if (test.isInside(trace.events[i]) && test.isNamed(trace.events[i])) {
      rows.push_back(i);
    }
  }
  reset(std::move(rows));
}

QString track_name(const trace::Trace& trace, const trace::Track& track) {
  return track.name != trace::kEmptyString ? table_text(trace.strings.view(track.name))
                                           : QString::number(track.tid);
}

}  // namespace shardlens::gui
