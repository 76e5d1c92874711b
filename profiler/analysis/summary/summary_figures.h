#pragma once

#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "profiler/analysis/analysis.h"
#include "profiler/analysis/figures/figure_table.h"
#include "profiler/analysis/summary/summary_codec.h"
#include "profiler/analysis/units/part_table.h"

// The fields of a summary, for writing and reading alike; used only by summary_file.cpp. A change
// of a name here, or of what a figure means, is a new kSummaryVersion. Figures first;
// summary_fields.h has the tables and the whole.
namespace shardlens::analysis {

template <>
inline constexpr int kEnumerators<CollectiveKind> = static_cast<int>(kCollectiveKindCount);
template <>
inline constexpr int kEnumerators<Purpose> = static_cast<int>(kPurposeCount);
template <>
inline constexpr int kEnumerators<UnitPart> = kUnitPartCount;
template <>
inline constexpr int kEnumerators<ExposedCause> = kExposedCauseCount;
template <>
inline constexpr int kEnumerators<WasteKind> = kWasteKindCount;
template <>
inline constexpr int kEnumerators<schedule::Cause> = schedule::kCauseCount;
template <>
inline constexpr int kEnumerators<Section> = kSectionCount;
template <>
inline constexpr int kEnumerators<Basis> = kBasisCount;
template <>
inline constexpr int kEnumerators<Nature> = 3;
template <>
inline constexpr int kEnumerators<trace::Severity> = 3;
template <>
inline constexpr int kEnumerators<UnitSpan::Kind> = 7;
template <>
inline constexpr int kEnumerators<ObservedEvent::What> = 3;
template <>
inline constexpr int kEnumerators<UnshardBy> = 4;

template <typename Archive>
void describe(Archive& a, trace::Diagnostic& d) {
  a.field("severity", d.severity);
  a.field("message", d.message);
  a.field("count", d.count);
}

template <typename Archive>
void describe(Archive& a, Interval& i) {
  a.time("start", i.start);
  a.time("end", i.end);
}

template <typename Archive>
void describe(Archive& a, KindFigures& k) {
  for (const KindFigureRow& row : kind_figure_table()) {
    if (row.of_rank) {
      a.field(std::string(row.key), k.*row.number);
    }
  }
}

template <typename Archive>
void describe(Archive& a, WindowFigures& f) {
  for (const FigureRow& row : figure_table()) {
    if (row.member != nullptr) {
      a.field(std::string(row.key), f.*row.member);
    }
  }
  std::vector<std::pair<CollectiveKind, KindFigures>> kinds(f.collectives.begin(),
                                                            f.collectives.end());
  a.list("collectives", kinds, [](Archive& each, auto& kind) {
    each.field("kind", kind.first);
    describe(each, kind.second);
  });
  a.object("unknown", [&](Archive& inside) { describe(inside, f.unknown); });
  if constexpr (Archive::kReads) {
    f.collectives = std::map<CollectiveKind, KindFigures>(kinds.begin(), kinds.end());
  }
}

template <typename Archive>
void describe(Archive& a, IdleFigures& i) {
  for (const IdleFigureRow& row : idle_figure_table()) {
    a.field(std::string(row.key), i.*row.member);
  }
}

template <typename Archive>
void describe(Archive& a, StepAnalysis& s) {
  a.field("step", s.step);
  a.object("window", [&](Archive& inside) { describe(inside, s.window); });
  a.object("figures", [&](Archive& inside) { describe(inside, s.figures); });
  a.object("idle", [&](Archive& inside) { describe(inside, s.idle); });
}

template <typename Archive>
void describe(Archive& a, LaunchFigures& l) {
  a.field("count", l.count);
  a.field("latency_median_ns", l.latency_median);
  a.field("latency_p99_ns", l.latency_p99);
  a.field("latency_max_ns", l.latency_max);
  a.field("before_launch", l.before_launch);
  a.field("queue_max", l.queue_max);
  a.field("queue_mean", l.queue_mean);
}

template <typename Archive>
void describe(Archive& a, MemoryFigures& m) {
  a.field("device", m.device);
  a.field("from_driver", m.from_driver);
  a.field("events", m.events);
  a.time("peak", m.peak.time);
  a.field("peak_allocated_bytes", m.peak.allocated);
  a.field("reserved_at_peak_bytes", m.peak.reserved);
  a.field("peak_reserved_bytes", m.peak_reserved);
  a.table("steps", m.steps, [](Archive& c, auto& table, auto& rows) {
    c.numbers(
        table, "step", rows, [](auto& r) -> auto& { return r.step; });
    c.numbers(
        table, "allocated_bytes", rows, [](auto& r) -> auto& { return r.allocated; });
  });
  a.table("timeline", m.timeline, [](Archive& c, auto& table, auto& rows) {
    c.times(
        table, "time", rows, [](auto& r) -> auto& { return r.time; });
    c.numbers(
        table, "allocated_bytes", rows, [](auto& r) -> auto& { return r.allocated; });
    c.numbers(
        table, "reserved_bytes", rows, [](auto& r) -> auto& { return r.reserved; });
  });
}

template <typename Archive>
void describe(Archive& a, PartFigures& p) {
  for (const PartFigureRow& row : part_figure_table()) {
    if (row.of_rank) {
      std::visit([&](auto member) { a.field(std::string(row.key), p.*member); }, row.member);
    }
  }
}

template <typename Archive>
void describe(Archive& a, UnitFigures& u) {
  a.field("fqn", u.fqn);
  a.field("is_unit", u.is_unit);
  for (size_t i = 0; i < u.parts.size(); ++i) {
    a.optional(word_of(static_cast<UnitPart>(i)), u.parts[i],
               [](Archive& inside, PartFigures& p) { describe(inside, p); });
  }
  a.list("others", u.others, [](Archive& each, NamedPart& part) {
    each.field("name", part.name);
    describe(each, part.figures);
  });
  a.field("compute_forward_ns", u.compute_forward);
  a.field("compute_backward_ns", u.compute_backward);
  a.field("compute_ns", u.compute);
  a.field("exposed_copy_ns", u.exposed_copy);
}

template <typename Archive>
void describe(Archive& a, GroupFigures& g) {
  a.field("name", g.name);
  a.field("ranks", g.ranks);
  a.field("size", g.size);
  a.field("count", g.count);
  a.field("bytes", g.bytes);
  a.field("busy_ns", g.busy);
  a.field("exposed_ns", g.exposed);
  a.field("under_compute_ns", g.under_compute);
  a.field("under_ns", g.under);
}

template <typename Archive>
void describe(Archive& a, CommunicationFigures& c) {
  a.field("purpose", c.purpose);
  a.field("group", c.group);
  a.field("ranks", c.ranks);
  a.field("kind", c.kind);
  a.field("count", c.count);
  a.field("bytes", c.bytes);
  a.field("busy_ns", c.busy);
  a.field("exposed_ns", c.exposed);
}

template <typename Archive>
void describe(Archive& a, AttributionFigures& f) {
  a.field("nature", f.nature);
  a.field("basis", f.basis);
  a.field("count", f.count);
  a.field("time_ns", f.time);
  a.field("count_share", f.count_share);
  a.field("time_share", f.time_share);
}

template <typename Archive>
void describe(Archive& a, Waste& w) {
  a.field("kind", w.kind);
  a.field("where", w.where);
  a.field("count", w.count);
  a.field("lost_ns", w.lost);
}

template <typename Archive>
void describe(Archive& a, FrozenViews& f) {
  a.field("backwards", f.backwards);
  a.field("late", f.late);
  a.field("found", f.found);
  a.field("fresh", f.fresh);
  a.field("lost_ns", f.lost);
}

}  // namespace shardlens::analysis
