#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/show.h"
#include "profiler/report/analysis_report.h"
#include "profiler/report/csv.h"
#include "profiler/report/figures_json.h"
#include "profiler/report/optional_values.h"

namespace shardlens::report {
namespace {

using analysis::Analysis;
using analysis::ObservedEvent;
using analysis::ObservedOrder;
using analysis::RankAnalysis;
using analysis::UnitSpan;
using nlohmann::ordered_json;

// Times are relative to the rank's first event or step.
Nanoseconds zero_of(const RankAnalysis& rank) {
  Nanoseconds zero = 0;
  bool any = false;
  for (const UnitSpan& span : rank.detail ? rank.detail->spans : std::vector<UnitSpan>()) {
    const Nanoseconds first = std::min(span.when.start, span.issued.value_or(span.when.start));
    zero = any ? std::min(zero, first) : first;
    any = true;
  }
  for (const analysis::StepAnalysis& step : rank.steps) {
    zero = any ? std::min(zero, step.window.start) : step.window.start;
    any = true;
  }
  return zero;
}

std::optional<Nanoseconds> since(const std::optional<Nanoseconds>& time, Nanoseconds zero) {
  return time ? std::optional(*time - zero) : std::nullopt;
}

std::string shown(const std::string& fqn) {
  return fqn.empty() ? "(root)" : fqn;
}

std::string name_at(const RankAnalysis& rank, uint32_t unit) {
  return unit < rank.unit_names.size() ? rank.unit_names[unit] : "";
}

std::string since_words(const std::optional<Nanoseconds>& time, Nanoseconds zero) {
  return time ? format_duration(*time - zero) : "-";
}

}  // namespace

ordered_json spans_json(const RankAnalysis& rank) {
  ordered_json out = ordered_json::array();
  const Nanoseconds zero = zero_of(rank);
  for (const UnitSpan& span : rank.detail->spans) {
    ordered_json one{
        {"fqn", span.owner}, {"kind", name_of(span.kind)}, {"section", name_of(span.section)}};
    one["step"] = or_null(span.step);
    one["issued_ns"] = or_null(since(span.issued, zero));
    one["start_ns"] = span.when.start - zero;
    one["end_ns"] = span.when.end - zero;
    one["busy_ns"] = span.busy;
    one["needed_ns"] = or_null(since(span.needed_at, zero));
    one["slack_ns"] = or_null(span.slack());
    one["exposed_ns"] = span.exposed;
    one["cause"] = span.cause ? ordered_json(name_of(*span.cause)) : ordered_json(nullptr);
    one["issued_by"] =
        span.issued_by ? ordered_json(schedule::name_of(*span.issued_by)) : ordered_json(nullptr);
    one["bytes"] = message_json(span.bytes);
    one["purpose"] = span.purpose ? ordered_json(name_of(*span.purpose)) : ordered_json(nullptr);
    if (!span.name.empty()) {
      one["name"] = span.name;
    }
    if (!span.module.empty()) {
      one["module"] = span.module;
    }
    if (span.basis != analysis::Basis::kNone) {
      one["attributed_by"] = name_of(span.basis);
    }
    if (!span.proof.empty()) {
      one["proof"] = ordered_json::array();
      for (const analysis::CauseProof& proof : span.proof) {
        one["proof"].push_back({{"what", proof.what},
                                {"event", proof.name},
                                {"start_ns", proof.when.start - zero},
                                {"end_ns", proof.when.end - zero}});
      }
    }
    out.push_back(std::move(one));
  }
  return out;
}

ordered_json observed_json(const RankAnalysis& rank) {
  ordered_json out = ordered_json::array();
  for (const ObservedOrder& order : rank.observed) {
    ordered_json events = ordered_json::array();
    for (const ObservedEvent& e : order.events) {
      ordered_json one{{"what", name_of(e.what)},
                       {"unit", name_at(rank, e.unit)},
                       {"section", e.backward ? "backward" : "forward"}};
      if (e.what == ObservedEvent::What::kUnshard) {
        one["by"] = name_of(e.by);
        one["hook_unit"] = name_at(rank, e.hook_unit);
      }
      events.push_back(std::move(one));
    }
    out.push_back({{"steps", order.steps}, {"events", std::move(events)}});
  }
  return out;
}

std::string spans_csv(const Analysis& analysis) {
  constexpr std::string_view kSpanColumns[] = {
      "rank",    "unit",      "kind",     "section",    "step",  "issued_ns", "start_ns", "end_ns",
      "busy_ns", "needed_ns", "slack_ns", "exposed_ns", "cause", "issued_by", "bytes"};
  Csv out(kSpanColumns);
  for (const RankAnalysis& rank : analysis.ranks) {
    const Nanoseconds zero = zero_of(rank);
    for (const UnitSpan& s : rank.detail->spans) {
      out.row(rank.rank, s.owner, name_of(s.kind), name_of(s.section), s.step,
              since(s.issued, zero), s.when.start - zero, s.when.end - zero, s.busy,
              since(s.needed_at, zero), s.slack(), s.exposed, s.cause ? name_of(*s.cause) : "",
              s.issued_by ? schedule::name_of(*s.issued_by) : "",
              s.bytes == 0 ? std::nullopt : std::optional(s.bytes));
    }
  }
  return out.take();
}

std::string observed_csv(const Analysis& analysis) {
  constexpr std::string_view kOrderColumns[] = {"rank", "steps",   "index", "what",
                                                "unit", "section", "by",    "hook_unit"};
  Csv out(kOrderColumns);
  for (const RankAnalysis& rank : analysis.ranks) {
    for (const ObservedOrder& order : rank.observed) {
      for (size_t i = 0; i < order.events.size(); ++i) {
        const ObservedEvent& e = order.events[i];
        const bool unshards = e.what == ObservedEvent::What::kUnshard;
        out.row(rank.rank, fmt::format("{}", fmt::join(order.steps, " ")), i, name_of(e.what),
                name_at(rank, e.unit), e.backward ? "backward" : "forward",
                unshards ? name_of(e.by) : "", unshards ? name_at(rank, e.hook_unit) : "");
      }
    }
  }
  return out.take();
}

Shown spans_text(const Analysis& analysis, std::optional<size_t> top, Style style) {
  Shown out;
  for (const RankAnalysis& rank : analysis.ranks) {
    std::vector<const UnitSpan*> rows;
    for (const UnitSpan& span : rank.detail->spans) {
      rows.push_back(&span);
    }
    if (top) {
      std::stable_sort(rows.begin(), rows.end(), [](const UnitSpan* a, const UnitSpan* b) {
        return a->exposed > b->exposed;
      });
    }
    const Nanoseconds zero = zero_of(rank);
    Table table({{"step"},
                 {"unit", Align::kLeft},
                 {"what", Align::kLeft},
                 {"in", Align::kLeft},
                 {"issued"},
                 {"start"},
                 {"end"},
                 {"needed"},
                 {"slack"},
                 {"exposed"},
                 {"cause", Align::kLeft},
                 {"issued by", Align::kLeft}});
    for (size_t i = 0; i < rows.size() && (!top || i < *top); ++i) {
      const UnitSpan& s = *rows[i];
      table.row({s.step ? std::to_string(*s.step) : "-", shown(s.owner),
                 std::string(name_of(s.kind)), std::string(name_of(s.section)),
                 since_words(s.issued, zero), format_duration(s.when.start - zero),
                 format_duration(s.when.end - zero), since_words(s.needed_at, zero),
                 s.slack() ? format_duration(*s.slack()) : "-", format_duration(s.exposed),
                 s.cause ? std::string(words_of(*s.cause)) : "",
                 s.issued_by ? std::string(schedule::name_of(*s.issued_by)) : ""});
      if (s.cause) {
        table.highlight();
      }
    }
    out += bold(show("spans of rank {}", rank.rank), style) + "\n" + table.render(style);
    if (top && rows.size() > *top) {
      out += show("({} more)\n", rows.size() - *top);
    }
  }
  return out;
}

Shown observed_text(const Analysis& analysis, Style style) {
  Shown out;
  for (const RankAnalysis& rank : analysis.ranks) {
    if (rank.observed.empty()) {
      out += show("rank {}: no FSDP ranges in the trace\n", rank.rank);
    }
    for (const ObservedOrder& order : rank.observed) {
      out += bold(show("rank {}, step{} {}", rank.rank, order.steps.size() == 1 ? "" : "s",
                       show_joined(order.steps, ", ")),
                  style) +
             "\n";
      Table table({{"", Align::kLeft},
                   {"what", Align::kLeft},
                   {"unit", Align::kLeft},
                   {"why", Align::kLeft}});
      for (const ObservedEvent& e : order.events) {
        std::string why;
        if (e.what == ObservedEvent::What::kUnshard && e.by != analysis::UnshardBy::kOwn) {
          why = fmt::format("{} from {}", name_of(e.by), shown(name_at(rank, e.hook_unit)));
        }
        table.row({e.backward ? "backward" : "forward", std::string(name_of(e.what)),
                   shown(name_at(rank, e.unit)), why});
      }
      out += table.render(style);
    }
  }
  return out;
}

}  // namespace shardlens::report
