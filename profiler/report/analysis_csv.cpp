#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "profiler/analysis/figures/figure_table.h"
#include "profiler/analysis/units/part_table.h"
#include "profiler/report/analysis_report.h"
#include "profiler/report/csv.h"

namespace shardlens::report {
namespace {

using analysis::Analysis;
using analysis::WindowFigures;

using Columns = std::vector<std::string_view>;

// A table of figures. `first`: the columns before theirs.
Csv figure_csv(Columns first) {
  std::vector<std::string> idle;
  for (const analysis::FigureRow& row : analysis::figure_table()) {
    first.push_back(row.key);
  }
  for (const analysis::IdleFigureRow& row : analysis::idle_figure_table()) {
    if (row.part) {
      idle.push_back(fmt::format("idle_{}", row.key));
    }
  }
  first.insert(first.end(), idle.begin(), idle.end());
  return Csv(first);
}

void add_figure_cells(const WindowFigures& f, const analysis::IdleFigures& idle, Csv& out) {
  for (const analysis::FigureRow& row : analysis::figure_table()) {
    row.time != nullptr ? out.cell(row.time(f)) : out.cell(row.ratio(f));
  }
  for (const analysis::IdleFigureRow& row : analysis::idle_figure_table()) {
    if (row.part) {
      out.cell(idle.*row.member);
    }
  }
  out.end_row();
}

std::string units_csv(const Analysis& analysis) {
  Columns columns{"rank", "unit", "part"};
  for (const analysis::PartFigureRow& row : analysis::part_figure_table()) {
    columns.push_back(row.key);
  }
  Csv out(columns);
  for (const analysis::RankAnalysis& rank : analysis.ranks) {
    for (const analysis::UnitFigures& unit : rank.units) {
      for (int i = 0; i < analysis::kUnitPartCount; ++i) {
        if (const auto& part = unit.parts[static_cast<size_t>(i)]) {
          out.cell(rank.rank);
          out.cell(unit.fqn);
          out.cell(analysis::name_of(static_cast<analysis::UnitPart>(i)));
          for (const analysis::PartFigureRow& row : analysis::part_figure_table()) {
            row.is_word() ? out.cell(row.word(*part)) : out.cell(row.number(*part));
          }
          out.end_row();
        }
      }
    }
  }
  return out.take();
}

std::string collectives_csv(const Analysis& analysis) {
  Columns columns{"rank", "collective"};
  for (const analysis::KindFigureRow& row : analysis::kind_figure_table()) {
    columns.push_back(row.key);
  }
  Csv out(columns);
  for (const analysis::RankAnalysis& rank : analysis.ranks) {
    const auto add = [&](std::string_view name, const analysis::KindFigures& k) {
      out.cell(rank.rank);
      out.cell(name);
      for (const analysis::KindFigureRow& row : analysis::kind_figure_table()) {
        row.number != nullptr ? out.cell(row.number_of(k)) : out.cell(k.*row.ratio);
      }
      out.end_row();
    };
    for (const auto& [kind, figures] : rank.figures.collectives) {
      add(name_of(kind), figures);
    }
    if (rank.figures.unknown.busy > 0) {
      add("unknown", rank.figures.unknown);
    }
  }
  return out.take();
}

std::string steps_csv(const Analysis& analysis) {
  Csv out = figure_csv({"rank", "step"});
  for (const analysis::RankAnalysis& rank : analysis.ranks) {
    for (const analysis::StepAnalysis& step : rank.steps) {
      out.cell(rank.rank);
      out.cell(step.step);
      add_figure_cells(step.figures, step.idle, out);
    }
  }
  return out.take();
}

std::string ranks_csv(const Analysis& analysis) {
  Csv out = figure_csv({"rank"});
  for (const analysis::RankAnalysis& rank : analysis.ranks) {
    out.cell(rank.rank);
    add_figure_cells(rank.figures, rank.idle, out);
  }
  return out.take();
}

std::string streams_csv(const Analysis& analysis) {
  Csv out(Columns{"rank", "stream", "busy_ns"});
  for (const analysis::RankAnalysis& rank : analysis.ranks) {
    for (const analysis::StreamFigures& stream : rank.streams) {
      out.row(rank.rank, stream.name, stream.busy);
    }
  }
  return out.take();
}

}  // namespace

std::string analysis_csv(const Analysis& analysis, By by) {
  switch (by) {
    case By::kUnit:
      return units_csv(analysis);
    case By::kCollective:
      return collectives_csv(analysis);
    case By::kStep:
      return steps_csv(analysis);
    case By::kRank:
      return ranks_csv(analysis);
    case By::kStream:
      return streams_csv(analysis);
    case By::kSpan:
      return spans_csv(analysis);
    case By::kOrder:
      return observed_csv(analysis);
    case By::kGroup:
      return overlaps_csv(analysis);
  }
  return "";
}

}  // namespace shardlens::report
