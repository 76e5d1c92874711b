#pragma once

#include <vector>

#include "profiler/analysis/rank_summary.h"
#include "profiler/analysis/summary/summary_figures.h"

// The tables of a summary and the whole, for writing and reading alike; see summary_figures.h.
namespace shardlens::analysis {

template <typename Archive>
void describe(Archive& a, ObservedOrder& o) {
  a.field("steps", o.steps);
  a.table("events", o.events, [](Archive& c, auto& table, auto& rows) {
    c.words(
        table, "what", rows, [](auto& r) -> auto& { return r.what; });
    c.numbers(
        table, "backward", rows, [](auto& r) -> auto& { return r.backward; });
    c.numbers(
        table, "unit", rows, [](auto& r) -> auto& { return r.unit; });
    c.numbers(
        table, "hook_unit", rows, [](auto& r) -> auto& { return r.hook_unit; });
    c.words(
        table, "by", rows, [](auto& r) -> auto& { return r.by; });
  });
}

template <typename Archive>
void describe(Archive& a, std::vector<UnitSpan>& spans) {
  a.table("spans", spans, [](Archive& c, auto& table, auto& rows) {
    c.words(
        table, "kind", rows, [](auto& r) -> auto& { return r.kind; });
    c.words(
        table, "owner", rows, [](auto& r) -> auto& { return r.owner; });
    c.numbers(
        table, "is_unit", rows, [](auto& r) -> auto& { return r.is_unit; });
    c.words(
        table, "section", rows, [](auto& r) -> auto& { return r.section; });
    c.numbers(
        table, "step", rows, [](auto& r) -> auto& { return r.step; });
    c.times(
        table, "start", rows, [](auto& r) -> auto& { return r.when.start; });
    c.times(
        table, "end", rows, [](auto& r) -> auto& { return r.when.end; });
    c.numbers(
        table, "busy_ns", rows, [](auto& r) -> auto& { return r.busy; });
    c.times(
        table, "issued", rows, [](auto& r) -> auto& { return r.issued; });
    c.times(
        table, "needed", rows, [](auto& r) -> auto& { return r.needed_at; });
    c.numbers(
        table, "exposed_ns", rows, [](auto& r) -> auto& { return r.exposed; });
    c.indices(
        table, "collective", rows, [](auto& r) -> auto& { return r.collective; });
    c.words(
        table, "purpose", rows, [](auto& r) -> auto& { return r.purpose; });
    c.words(
        table, "part", rows, [](auto& r) -> auto& { return r.part; });
    c.words(
        table, "name", rows, [](auto& r) -> auto& { return r.name; });
    c.words(
        table, "issued_by", rows, [](auto& r) -> auto& { return r.issued_by; });
    c.numbers(
        table, "bytes", rows, [](auto& r) -> auto& { return r.bytes; });
  });
}

template <typename Archive>
void describe(Archive& a, RankCollectives& all) {
  a.field("units", all.units);
  a.field("names", all.names);
  a.list("groups", all.groups, [](Archive& each, CollectiveGroup& group) {
    each.field("name", group.name);
    each.field("ranks", group.ranks);
    each.field("description", group.description);
  });
  a.table("rows", all.rows, [](Archive& c, auto& table, auto& rows) {
    c.times(
        table, "start", rows, [](auto& r) -> auto& { return r.when.start; });
    c.times(
        table, "end", rows, [](auto& r) -> auto& { return r.when.end; });
    c.times(
        table, "issued", rows, [](auto& r) -> auto& { return r.issued; });
    c.words(
        table, "kind", rows, [](auto& r) -> auto& { return r.kind; });
    c.words(
        table, "part", rows, [](auto& r) -> auto& { return r.part; });
    c.numbers(
        table, "emulated", rows, [](auto& r) -> auto& { return r.emulated; });
    c.indices(
        table, "unit", rows, [](auto& r) -> auto& { return r.unit; });
    c.numbers(
        table, "group", rows, [](auto& r) -> auto& { return r.group; });
    c.numbers(
        table, "communicator", rows, [](auto& r) -> auto& { return r.communicator; });
    c.numbers(
        table, "name", rows, [](auto& r) -> auto& { return r.name; });
    c.numbers(
        table, "bytes", rows, [](auto& r) -> auto& { return r.bytes; });
    c.numbers(
        table, "ranks", rows, [](auto& r) -> auto& { return r.ranks; });
    c.numbers(
        table, "sequence", rows, [](auto& r) -> auto& { return r.sequence; });
    c.numbers(
        table, "comms_id", rows, [](auto& r) -> auto& { return r.comms_id; });
    c.numbers(
        table, "sent", rows, [](auto& r) -> auto& { return r.sent; });
    c.numbers(
        table, "received", rows, [](auto& r) -> auto& { return r.received; });
    c.numbers(
        table, "step", rows, [](auto& r) -> auto& { return r.step; });
  });
}

template <typename Archive>
void describe(Archive& a, std::vector<UnitExposure>& exposures) {
  a.table("exposures", exposures, [](Archive& c, auto& table, auto& rows) {
    c.numbers(
        table, "collective", rows, [](auto& r) -> auto& { return r.exposure.collective; });
    c.numbers(
        table, "exposed_ns", rows, [](auto& r) -> auto& { return r.exposure.length; });
    c.times(
        table, "half", rows, [](auto& r) -> auto& { return r.exposure.half; });
    c.words(
        table, "cause", rows, [](auto& r) -> auto& { return r.exposure.own.cause; });
    c.numbers(
        table, "certain", rows, [](auto& r) -> auto& { return r.exposure.own.certain; });
    c.numbers(
        table, "rated", rows, [](auto& r) -> auto& { return r.exposure.own.rated; });
    c.numbers(
        table, "unit", rows, [](auto& r) -> auto& { return r.unit; });
    c.words(
        table, "part", rows, [](auto& r) -> auto& { return r.part; });
    c.indices(
        table, "other", rows, [](auto& r) -> auto& { return r.other; });
  });
}

template <typename Archive>
void describe(Archive& a, StepOrder& order) {
  a.field("step", order.step);
  const auto entries = [](Archive& c, auto& table, auto& rows) {
    c.words(
        table, "kind", rows, [](auto& r) -> auto& { return r.kind; });
    c.words(
        table, "unit", rows, [](auto& r) -> auto& { return r.unit; });
    c.numbers(
        table, "prefetched", rows, [](auto& r) -> auto& { return r.prefetched; });
  };
  a.table("planned", order.planned, entries);
  a.table("issued", order.issued, entries);
  a.table("started", order.started, entries);
}

template <typename Archive>
void describe(Archive& a, RankAnalysis& rank) {
  a.field("device", rank.device);
  a.list("window", rank.window, [](Archive& each, Interval& i) { describe(each, i); });
  a.object("figures", [&](Archive& inside) { describe(inside, rank.figures); });
  a.object("idle", [&](Archive& inside) { describe(inside, rank.idle); });
  a.object("launch", [&](Archive& inside) { describe(inside, rank.launch); });
  a.list("memory", rank.memory, [](Archive& each, MemoryFigures& m) { describe(each, m); });
  a.list("steps", rank.steps, [](Archive& each, StepAnalysis& s) { describe(each, s); });
  a.list("units", rank.units, [](Archive& each, UnitFigures& u) { describe(each, u); });
  a.list("groups", rank.groups, [](Archive& each, GroupFigures& g) { describe(each, g); });
  a.list("communication", rank.communication,
         [](Archive& each, CommunicationFigures& c) { describe(each, c); });
  a.list("attribution", rank.attribution,
         [](Archive& each, AttributionFigures& f) { describe(each, f); });
  a.list("waste", rank.waste, [](Archive& each, Waste& w) { describe(each, w); });
  a.optional("frozen_views", rank.frozen_views,
             [](Archive& inside, FrozenViews& f) { describe(inside, f); });
  a.list("streams", rank.streams, [](Archive& each, StreamFigures& s) {
    each.field("name", s.name);
    each.field("busy_ns", s.busy);
  });
  a.field("unit_names", rank.unit_names);
  a.list("observed", rank.observed, [](Archive& each, ObservedOrder& o) { describe(each, o); });
  if constexpr (Archive::kReads) {
    rank.detail.emplace();
  }
  describe(a, rank.detail->spans);
}

template <typename Archive>
void describe(Archive& a, RankSummary& s) {
  a.field("source", s.source);
  a.field("rank", s.rank);
  a.field("comm_regex", s.comm_regex);
  a.optional("chosen", s.chosen, [](Archive& inside, StepRange& range) {
    inside.field("first", range.first);
    inside.field("last", range.last);
  });
  a.field("recorded_steps", s.recorded_steps);
  a.field("unnumbered", s.unnumbered);
  const auto diagnostic = [](Archive& each, trace::Diagnostic& d) { describe(each, d); };
  a.list("run_diagnostics", s.run_diagnostics, diagnostic);
  a.list("diagnostics", s.diagnostics, diagnostic);
  a.object("analysis", [&](Archive& inside) { describe(inside, s.analysis); });
  a.object("collectives", [&](Archive& inside) { describe(inside, s.collectives); });
  describe(a, s.exposures);
  a.list("orders", s.orders, [](Archive& each, StepOrder& o) { describe(each, o); });
}

}  // namespace shardlens::analysis
