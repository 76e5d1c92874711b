#include "gui/model/run/run_data.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include "gui/model/base/words.h"
#include "gui/model/lanes/host_lanes.h"
#include "profiler/analysis/order/order_checks.h"
#include "profiler/trace/bytes/parallel.h"

namespace shardlens::gui {
namespace {

using analysis::Collective;
using analysis::Interval;
using analysis::Nature;

Kind kind_of(Purpose purpose) {
  switch (purpose) {
    case Purpose::kGatherParameters:
      return Kind::kAllGather;
    case Purpose::kReduceGradients:
      return Kind::kReduceScatter;
    case Purpose::kReduceReplicas:
      return Kind::kAllReduce;
    default:
      return Kind::kOtherComm;
  }
}

// Analyzes the run and drops what the app does not use: on large runs a fifth of the memory.
analysis::Analysis analyzed(const trace::Run& run, const trace::Progress* progress) {
  analysis::AnalysisOptions options;
  options.detail = analysis::DetailLevel::kCollectives;
  options.keep_timelines = true;
  options.timeline.progress = progress;
  analysis::Analysis out = analysis::analyze(run, options);
  for (analysis::RankAnalysis& rank : out.ranks) {
    rank.detail->idle.shrink_to_fit();
  }
  for (analysis::Timeline& timeline : out.timelines) {
    const std::function<void()> parts[] = {[&timeline] { timeline.device_events.shrink_to_fit(); },
                                           [&timeline] { timeline.collectives.shrink_to_fit(); },
                                           [&timeline] { timeline.fsdp.events.shrink_to_fit(); },
                                           [&timeline] { timeline.host_events.shrink_to_fit(); },
                                           [&timeline] { timeline.compute.shrink_to_fit(); },
                                           [&timeline] { timeline.communication.shrink_to_fit(); },
                                           [&timeline] { timeline.copy.shrink_to_fit(); }};
    trace::in_parallel(std::size(parts), [&parts](size_t i) { parts[i](); });
  }
  return out;
}

std::vector<analysis::StepOrder> orders_of(const trace::Trace& trace,
                                           const analysis::Timeline& timeline,
                                           const trace::PlannedInputs* planned) {
  std::vector<trace::Diagnostic> told_already;  // analyze() has reported these
  return analysis::step_orders(trace, timeline, planned, told_already);
}

// The interval from the first to the last instant in the rank's figures and lanes.
std::optional<Interval> hull_of(const RankData& rank) {
  std::optional<Interval> hull;
  const auto take = [&hull](const Interval& i) {
    hull = hull ? Interval{std::min(hull->start, i.start), std::max(hull->end, i.end)} : i;
  };
  for (const Interval& i : rank.timeline.span) {
    take(i);
  }
  for (const Lane& lane : rank.lanes) {
    for (const LaneRow& row : lane.rows) {
      if (!row.items().empty()) {
        take({row.items().front().start, row.items().back().end});
      }
    }
  }
  return hull;
}

}  // namespace

Kind kind_of(const Collective& c) {
  return kind_of(c.purpose == Purpose::kOther ? sharding_purpose(c.kind) : c.purpose);
}

const char* label_of(Kind kind) {
  constexpr const char* kLabels[] = {
      "compute", "all-gather", "reduce-scatter", "all-reduce", "other comm", "copies", "host"};
  return kLabels[static_cast<size_t>(kind)];
}

QString label_of(const Collective& c) {
  const QString what =
      c.kind ? words(name_of(*c.kind)) : QString::fromUtf8(label_of(Kind::kOtherComm));
  const bool other = kind_of(c.purpose) == Kind::kOtherComm && c.purpose != Purpose::kOther;
  return other ? QStringLiteral("%1, %2").arg(what, words(name_of(c.purpose))) : what;
}

PlanPointer plan_of(const RunPointer& run) {
  return run == nullptr || !run->run.planned ? nullptr : PlanPointer(run, &run->run.planned->plan);
}

std::string unit_label(const std::string& fqn) {
  return fqn.empty() ? "(root)" : fqn;
}

RankData::RankData(const trace::Trace& trace_in,
                   const analysis::RankAnalysis& figures_in,
                   const analysis::Timeline& timeline_in,
                   const trace::PlannedInputs* planned)
    : trace(trace_in),
      figures(figures_in),
      timeline(timeline_in),
      partition(timeline_in),
      live(timeline_in, partition) {
  make(planned);
}

// Rows of the events with this nature, for Lane::Source::kEvents. They are counted first, which is
// cheaper on large traces than growing the vector.
std::vector<LaneRow> RankData::rows_of_events(Nature nature) const {
  const std::vector<analysis::DeviceEvent>& all =
      timeline.device ? timeline.device_events : timeline.host_events;
  const auto shown = [&](const analysis::DeviceEvent& e) {
    return e.nature == nature && e.when.length() > 0;
  };
  std::vector<uint32_t> positions;
  positions.reserve(static_cast<size_t>(std::count_if(all.begin(), all.end(), shown)));
  for (uint32_t i = 0; i < all.size(); ++i) {
    if (shown(all[i])) {
      positions.push_back(i);
    }
  }
  return rows_of({&all,
                  [](const void* table, uint32_t position) -> LaneItem {
                    using Events = std::vector<analysis::DeviceEvent>;
                    const auto& event = (*static_cast<const Events*>(table))[position];
                    return {event.when.start, event.when.end, event.event};
                  }},
                 std::move(positions));
}

std::vector<LaneRow> RankData::rows_of_exposed() const {
  using Parts = std::vector<analysis::Partition::Owned>;
  const Parts& parts = partition.exposed_by_collective();
  std::vector<uint32_t> all(parts.size());
  std::iota(all.begin(), all.end(), 0U);
  return rows_of({&parts,
                  [](const void* table, uint32_t position) -> LaneItem {
                    const auto& part = (*static_cast<const Parts*>(table))[position];
                    return {part.when.start, part.when.end, part.collective};
                  }},
                 std::move(all));
}

std::map<Kind, std::vector<LaneRow>> RankData::rows_of_collectives() const {
  std::map<Kind, std::vector<uint32_t>> positions;
  for (uint32_t i = 0; i < timeline.collectives.size(); ++i) {
    positions[kind_of(timeline.collectives[i])].push_back(i);
  }
  std::map<Kind, std::vector<LaneRow>> rows;
  for (auto& [kind, list] : positions) {
    rows[kind] = rows_of(ItemTable(timeline.collectives), std::move(list));
  }
  return rows;
}

void RankData::make(const trace::PlannedInputs* planned) {
  std::vector<LaneRow> sections, operators, calls, compute, exposed_parts, copies, gathered,
      idle_time, pieces;
  std::map<Kind, std::vector<LaneRow>> collectives;
  const std::function<void()> parts[] = {
      [&] { copies = rows_of_events(Nature::kCopy); },
      [&] { compute = rows_of_events(Nature::kCompute); },
      [&] { collectives = rows_of_collectives(); },
      [&] { exposed_parts = rows_of_exposed(); },
      [&] { sections = rows_of(timeline.sections.parts()); },
      [&] {
        if (timeline.device) {
          operators = rows_of(items_of(trace), outermost_operators(trace, timeline));
        }
      },
      [&] {
        if (timeline.device) {
          calls = rows_of(items_of(trace), runtime_calls(trace, timeline));
          links = LaunchLinks(trace, timeline);
          queue = QueueCurve(timeline, links);
        }
      },
      [&] {
        if (timeline.device) {
          idle_time = rows_of(idle());
        }
      },
      [&] {
        allocations = residencies_of(trace);
        residencies = on_device(allocations, timeline);
        gathered = rows_of(residencies);
      },
      [&] { orders = orders_of(trace, timeline, planned); },
      [&] {
        regions = analysis::regions_of(trace, timeline);
        pieces = rows_of(regions);
      },
      [&] { index_spans(); }};
  trace::in_parallel(std::size(parts), [&parts](size_t i) { parts[i](); });
  const auto add = [this](Kind kind, Lane::Source source, std::vector<LaneRow>& rows,
                          const char* name = nullptr) {
    if (!rows.empty()) {
      lanes.push_back({kind, source, std::move(rows), name});
    }
  };
  add(Kind::kHost, Lane::Source::kSections, sections);
  add(Kind::kHost, Lane::Source::kEvents, operators, Lane::kOperators);
  add(Kind::kHost, Lane::Source::kEvents, calls, Lane::kCalls);
  add(Kind::kHost, Lane::Source::kRegions, pieces);
  add(Kind::kCompute, Lane::Source::kEvents, compute);
  for (auto& [kind, rows] : collectives) {
    add(kind, Lane::Source::kCollectives, rows);
  }
  add(Kind::kOtherComm, Lane::Source::kExposed, exposed_parts);
  add(Kind::kCopy, Lane::Source::kEvents, copies);
  add(Kind::kHost, Lane::Source::kIdle, idle_time);
  add(Kind::kAllGather, Lane::Source::kResidency, gathered);
}

void RankData::index_spans() {
  spans_.resize(timeline.collectives.size());
  if (!figures.detail) {
    return;
  }
  for (const analysis::UnitSpan& span : figures.detail->spans) {
    if (span.collective == trace::kNoIndex) {
      continue;
    }
    CollectiveSpan& out = spans_[span.collective].emplace();
    out.step = span.step;
    out.cause = span.cause;
    out.part = span.part.value_or(analysis::UnitPart::kOther);
    if (!timeline.collectives[span.collective].unit) {
      const auto found = std::ranges::find(no_units, span.owner);
      out.owner = static_cast<uint32_t>(found - no_units.begin());
      if (found == no_units.end()) {
        no_units.push_back(span.owner);
      }
    }
  }
}

const CollectiveSpan* RankData::span_of(uint32_t collective) const {
  const std::optional<CollectiveSpan>& span = spans_[collective];
  return span ? &*span : nullptr;
}

std::optional<Nanoseconds> RankData::slack_of(uint32_t collective) const {
  const Collective& c = timeline.collectives[collective];
  return span_of(collective) != nullptr && c.needed_at ? std::optional(*c.needed_at - c.when.end)
                                                       : std::nullopt;
}

std::string RankData::owner_of(uint32_t collective) const {
  const Collective& c = timeline.collectives[collective];
  if (c.unit) {
    return timeline.units[*c.unit];
  }
  const CollectiveSpan* span = span_of(collective);
  return span != nullptr ? no_units[span->owner] : "<none>";
}

const analysis::Place* RankData::place_of(uint32_t event) const {
  if (timeline.device) {
    const auto position = device_event_of(trace, timeline, event);
    return position ? &timeline.place(timeline.device_events[*position]) : nullptr;
  }
  const Nanoseconds start = trace.events[event].start;
  auto each =
      std::ranges::lower_bound(timeline.host_events, start, {},
                               [](const analysis::DeviceEvent& other) { return other.when.start; });
  while (each != timeline.host_events.end() && each->when.start == start && each->event != event) {
    ++each;
  }
  return each != timeline.host_events.end() && each->event == event ? &timeline.place(*each)
                                                                    : nullptr;
}

analysis::Basis RankData::basis_of_event(uint32_t event) const {
  const analysis::Place* place = place_of(event);
  return place == nullptr || place->basis == analysis::Basis::kRange ? analysis::Basis::kNone
                                                                     : place->basis;
}

std::string RankData::owner_of_event(uint32_t event) const {
  if (basis_of_event(event) != analysis::Basis::kNone) {
    const analysis::Owner& owner = place_of(event)->owner;
    return owner.unit != kNoUnit ? unit_label(timeline.units[owner.unit])
           : owner.section == analysis::Section::kNone
               ? ""
               : "<" + std::string(name_of(owner.section)) + ">";
  }
  uint32_t launch = event;
  if (const auto position = device_event_of(trace, timeline, event)) {
    launch = timeline.device_events[*position].launch;
    if (launch == trace::kNoIndex) {
      return "";
    }
  }
  const trace::Event& call = trace.events[launch];
  const analysis::Owner owner = timeline.sections.at(call.track, call.start);
  if (owner.unit != kNoUnit) {
    return unit_label(timeline.fsdp.units[owner.unit].fqn);
  }
  return owner.section == analysis::Section::kNone
             ? ""
             : "<" + std::string(name_of(owner.section)) + ">";
}

std::optional<uint32_t> RankData::operator_at(uint32_t track, Nanoseconds instant) const {
  for (const Lane& lane : lanes) {
    for (size_t row = 0; lane.name == Lane::kOperators && row < lane.rows.size(); ++row) {
      const LaneItems items = lane.rows[row].items();
      const size_t i = lane.rows[row].first_ending_after(instant);
      if (i < items.size() && items[i].start <= instant &&
          trace.events[items[i].ref].track == track) {
        return items[i].ref;
      }
    }
  }
  return std::nullopt;
}

std::optional<size_t> RankData::step_at(Nanoseconds instant) const {
  for (size_t i = 0; i < figures.steps.size(); ++i) {
    if (instant >= figures.steps[i].window.start && instant < figures.steps[i].window.end) {
      return i;
    }
  }
  return std::nullopt;
}

RunData::RunData(trace::Run run_in, const trace::Progress* progress)
    : run(std::move(run_in)), analysis(analyzed(run, progress)), ranks(run.traces.size()) {
  trace::in_parallel(ranks.size(), [&](size_t i) {
    if (progress != nullptr) {
      progress->check();
    }
    ranks[i] = std::make_unique<RankData>(run.traces[i], analysis.ranks[i], analysis.timelines[i],
                                          run.planned ? &*run.planned : nullptr);
  });
  for (analysis::Timeline& timeline : analysis.timelines) {
    timeline.lists = {};  // what needs them is made
  }
  for (analysis::RankAnalysis& rank : analysis.ranks) {
    std::vector<analysis::UnitSpan>().swap(rank.detail->spans);  // likewise; frees them too
  }
  std::optional<Interval> hull;
  for (size_t i = 0; i < ranks.size(); ++i) {
    RankData& rank = *ranks[i];
    for (const analysis::ClockFigures& clock : analysis.matching.clocks) {
      rank.shift = clock.rank == rank.figures.rank ? clock.offset : rank.shift;
    }
    event_count += static_cast<int64_t>(run.traces[i].events.size());
    if (const auto own = hull_of(rank)) {
      const Interval aligned{own->start - rank.shift, own->end - rank.shift};
      hull = hull ? Interval{std::min(hull->start, aligned.start), std::max(hull->end, aligned.end)}
                  : aligned;
    }
  }
  origin = hull ? hull->start : 0;
  duration = hull ? hull->length() : 0;
}

}  // namespace shardlens::gui
