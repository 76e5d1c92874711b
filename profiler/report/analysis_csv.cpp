#include <fmt/format.h>

#include "core/base/shown.h"
#include "profiler/analysis/figures/figure_table.h"
#include "profiler/report/analysis_report.h"
#include "profiler/report/optional_values.h"

namespace shardlens::report {
namespace {

using analysis::Analysis;
using analysis::WindowFigures;

std::string figure_columns() {
  std::string out;
  for (const analysis::FigureRow& row : analysis::figure_table()) {
    out += fmt::format("{},", row.key);
  }
  return out + "idle_host_late_ns,idle_event_wait_ns,idle_gap_ns,idle_unknown_ns";
}

std::string figures_row(const WindowFigures& f, const analysis::IdleFigures& idle) {
  std::string out;
  for (const analysis::FigureRow& row : analysis::figure_table()) {
    out += (row.time != nullptr ? fmt::to_string(row.time(f)) : or_empty(row.ratio(f))) + ",";
  }
  return out + fmt::format("{},{},{},{}", idle.host_late, idle.event_wait, idle.gap, idle.unknown);
}

std::string units_csv(const Analysis& analysis) {
  std::string out = "rank,unit,part,count,bytes,busy_ns,exposed_ns,lead_ns,cause,issued_by\r\n";
  for (const analysis::RankAnalysis& rank : analysis.ranks) {
    for (const analysis::UnitFigures& unit : rank.units) {
      for (int i = 0; i < analysis::kUnitPartCount; ++i) {
        const auto& part = unit.parts[static_cast<size_t>(i)];
        if (part) {
          out += fmt::format("{},{},{},{},{},{},{},{},{},{}\r\n", rank.rank, csv_cell(unit.fqn),
                             analysis::name_of(static_cast<analysis::UnitPart>(i)), part->count,
                             part->bytes == 0 ? "" : fmt::to_string(part->bytes), part->busy,
                             part->exposed, or_empty(part->lead),
                             part->cause ? analysis::name_of(*part->cause) : "",
                             part->issued_by ? schedule::name_of(*part->issued_by) : "");
        }
      }
    }
  }
  return out;
}

std::string collectives_csv(const Analysis& analysis) {
  std::string out =
      "rank,collective,count,bytes,busy_ns,exposed_ns,matched,transfer_ns,wait_ns,algbw_gbps,"
      "busbw_gbps\r\n";
  for (const analysis::RankAnalysis& rank : analysis.ranks) {
    const auto add = [&](std::string_view name, const analysis::KindFigures& k) {
      out += fmt::format("{},{},{},{},{},{},{},{},{},{},{}\r\n", rank.rank, name, k.count,
                         k.bytes == 0 ? "" : fmt::to_string(k.bytes), k.busy, k.exposed, k.matched,
                         k.matched > 0 ? fmt::to_string(k.transfer) : "",
                         k.matched > 0 ? fmt::to_string(k.wait) : "", or_empty(k.algbw),
                         or_empty(k.busbw));
    };
    for (const auto& [kind, figures] : rank.figures.collectives) {
      add(name_of(kind), figures);
    }
    if (rank.figures.unknown.busy > 0) {
      add("unknown", rank.figures.unknown);
    }
  }
  return out;
}

}  // namespace

std::string csv_cell(std::string_view text) {
  std::string shown = escaped(text);
  if (shown.find_first_of("=+-@") == 0) {
    shown.insert(0, "'");
  }
  if (shown.find_first_of(",\"") == std::string::npos) {
    return shown;
  }
  std::string out = "\"";
  for (const char c : shown) {
    out += c == '"' ? "\"\"" : std::string(1, c);
  }
  return out + "\"";
}

std::string analysis_csv(const Analysis& analysis, By by) {
  std::string out;
  switch (by) {
    case By::kUnit:
      return units_csv(analysis);
    case By::kCollective:
      return collectives_csv(analysis);
    case By::kStep:
      out = fmt::format("rank,step,{}\r\n", figure_columns());
      for (const analysis::RankAnalysis& rank : analysis.ranks) {
        for (const analysis::StepAnalysis& step : rank.steps) {
          out += fmt::format("{},{},{}\r\n", rank.rank, step.step,
                             figures_row(step.figures, step.idle));
        }
      }
      return out;
    case By::kRank:
      out = fmt::format("rank,{}\r\n", figure_columns());
      for (const analysis::RankAnalysis& rank : analysis.ranks) {
        out += fmt::format("{},{}\r\n", rank.rank, figures_row(rank.figures, rank.idle));
      }
      return out;
    case By::kStream:
      out = "rank,stream,busy_ns\r\n";
      for (const analysis::RankAnalysis& rank : analysis.ranks) {
        for (const analysis::StreamFigures& stream : rank.streams) {
          out += fmt::format("{},{},{}\r\n", rank.rank, csv_cell(stream.name), stream.busy);
        }
      }
      return out;
    case By::kSpan:
      return spans_csv(analysis);
    case By::kOrder:
      return observed_csv(analysis);
  }
  return out;
}

}  // namespace shardlens::report
