#include "profiler/report/figures_text.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "core/base/format_bytes.h"
#include "core/base/show.h"

namespace shardlens::report {
namespace {

using analysis::Analysis;
using analysis::RankAnalysis;

std::string bandwidth(const std::optional<double>& value) {
  return value ? fmt::format("{:.2f}", *value) : "-";
}

std::string share(Nanoseconds part, Nanoseconds whole) {
  return whole == 0 ? "-" : format_percent(static_cast<double>(part) / static_cast<double>(whole));
}

Shown matched_table(const analysis::Matching& matching, std::optional<size_t> top, Style style) {
  if (matching.collectives.empty()) {
    return {};
  }
  Table table({{"collective", Align::kLeft},
               {"group", Align::kLeft},
               {"ranks"},
               {"count"},
               {"bytes"},
               {"transfer"},
               {"wait"},
               {"skew"},
               {"worst"},
               {"algbw GB/s"},
               {"busbw GB/s"}});
  for (const analysis::MatchedFigures& m : matching.collectives) {
    if (top && table.rows() >= *top) {
      break;
    }
    table.row({std::string(name_of(m.kind)), m.group, std::to_string(m.ranks),
               std::to_string(m.count), format_message(m.bytes), format_duration(m.transfer_median),
               format_duration(m.wait_median), format_duration(m.skew_median),
               format_duration(m.skew_max), bandwidth(m.algbw), bandwidth(m.busbw)});
  }
  const size_t rest = matching.collectives.size() - table.rows();
  return "\n" + bold("matched across ranks (medians)", style) + "\n" + table.render(style) +
         (rest == 0 ? Shown() : show("({} more)\n", rest));
}

}  // namespace

Shown device_line(const RankAnalysis& rank) {
  if (!rank.device || rank.figures.idle == 0) {
    return {};
  }
  using analysis::IdleCause;
  const std::array<std::pair<IdleCause, Nanoseconds>, 4> causes{
      {{IdleCause::kHostLate, rank.idle.host_late},
       {IdleCause::kEventWait, rank.idle.event_wait},
       {IdleCause::kGap, rank.idle.gap},
       {IdleCause::kUnknown, rank.idle.unknown}}};
  Shown out = Literal("idle:");
  bool first = true;
  for (const auto& [cause, time] : causes) {
    if (time > 0) {
      out += show("{} {} {}", first ? "" : ",", words_of(cause), format_duration(time));
      first = false;
    }
  }
  if (rank.launch.count > 0) {
    out +=
        show("; launch to start {} (median), {} (99 %); {:.1f} queued on average, {} at most",
             format_duration(rank.launch.latency_median), format_duration(rank.launch.latency_p99),
             rank.launch.queue_mean, rank.launch.queue_max);
  }
  return out + "\n";
}

Shown collectives_section(const Analysis& analysis, std::optional<size_t> top, Style style) {
  Table table({{"rank"},
               {"collective", Align::kLeft},
               {"count"},
               {"bytes"},
               {"busy"},
               {"exposed"},
               {"wait"},
               {"transfer"},
               {"algbw GB/s"},
               {"busbw GB/s"}});
  for (const RankAnalysis& rank : analysis.ranks) {
    const auto add = [&](std::string_view name, const analysis::KindFigures& k) {
      table.row({std::to_string(rank.rank), std::string(name), std::to_string(k.count),
                 format_message(k.bytes), format_duration(k.busy), format_duration(k.exposed),
                 k.matched > 0 ? format_duration(k.wait) : "-",
                 k.matched > 0 ? format_duration(k.transfer) : "-", bandwidth(k.algbw),
                 bandwidth(k.busbw)});
    };
    for (const auto& [kind, figures] : rank.figures.collectives) {
      add(name_of(kind), figures);
    }
    if (rank.figures.unknown.busy > 0) {
      add("unknown", rank.figures.unknown);
    }
  }
  return table.render(style) + matched_table(analysis.matching, top, style);
}

Shown ranks_section(const Analysis& analysis, Style style) {
  const analysis::Matching& m = analysis.matching;
  if (m.clocks.empty()) {
    return {};
  }
  Table table({{"rank"},
               {"collectives"},
               {"clock off by"},
               {"spread"},
               {"residual"},
               {"last"},
               {"delayed others"}});
  for (size_t i = 0; i < m.clocks.size(); ++i) {
    const analysis::ClockFigures& c = m.clocks[i];
    table.row({std::to_string(c.rank), std::to_string(c.collectives), format_duration(c.offset),
               format_duration(c.spread), format_duration(c.residual),
               std::to_string(m.stragglers[i].last), format_duration(m.stragglers[i].held_up)});
  }
  return "\n" + bold("across ranks", style) + "\n" + table.render(style);
}

Shown critical_path_section(const Analysis& analysis, std::optional<size_t> top, Style style) {
  Shown out;
  for (const RankAnalysis& rank : analysis.ranks) {
    for (const analysis::StepPath& step : rank.critical_paths) {
      Nanoseconds length = 0;
      for (const Nanoseconds each : step.path.lengths) {
        length += each;
      }
      out += "\n" +
             bold(show("critical path of rank {}, step {}: {}, bound by {}", rank.rank,
                       step.path.step, format_duration(length), name_of(step.path.bound())),
                  style) +
             "\n";
      Table table({{"bound", Align::kLeft},
                   {"on rank"},
                   {"time"},
                   {"share"},
                   {"count"},
                   {"event", Align::kLeft}});
      Nanoseconds shown = 0;
      const size_t rows = top.value_or(10);
      for (const analysis::PathPart& part : step.parts) {
        if (table.rows() >= rows) {
          break;
        }
        shown += part.length;
        table.row({std::string(name_of(part.bound)), std::to_string(part.rank),
                   format_duration(part.length), share(part.length, length),
                   std::to_string(part.count), elided(part.name, 60)});
      }
      if (step.parts.size() > rows) {
        table.row({fmt::format("({} more)", step.parts.size() - rows), "",
                   format_duration(length - shown), share(length - shown, length)});
      }
      out += table.render(style);
    }
  }
  return out;
}

Shown memory_section(const Analysis& analysis, Style style) {
  Table table({{"rank"}, {"device", Align::kLeft}, {"peak allocated"}, {"peak reserved"}});
  Table driver({{"rank"}, {"device", Align::kLeft}, {"at most"}});
  for (const RankAnalysis& rank : analysis.ranks) {
    for (const analysis::MemoryFigures& m : rank.memory) {
      if (m.from_driver) {
        driver.row({std::to_string(rank.rank), m.device, format_bytes(m.peak.allocated)});
      } else {
        table.row({std::to_string(rank.rank), m.device, format_bytes(m.peak.allocated),
                   format_bytes(m.peak_reserved)});
      }
    }
  }
  Shown out;
  if (table.rows() > 0) {
    out += "\n" + bold("memory", style) + "\n" + table.render(style);
  }
  if (driver.rows() > 0) {
    out += "\n" + bold("memory taken from the driver since recording began", style) + "\n" +
           driver.render(style);
  }
  return out;
}

}  // namespace shardlens::report
