#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/show.h"
#include "profiler/analysis/figures/figure_table.h"
#include "profiler/report/analysis_report.h"
#include "profiler/report/figures_text.h"
#include "profiler/report/findings_text.h"

namespace shardlens::report {
namespace {

using analysis::Analysis;
using analysis::PartFigures;
using analysis::RankAnalysis;
using analysis::UnitPart;
using analysis::WindowFigures;

double fraction_of(Nanoseconds part, Nanoseconds whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// Durations of the parts, and of the span as the last element. Each is rounded by itself, as in the
// tables, so that one figure is one number everywhere.
std::vector<std::string> shown_parts(const WindowFigures& f) {
  std::vector<std::string> out;
  for (const analysis::FigureRow& row : analysis::figure_table()) {
    if (row.part) {
      out.push_back(format_duration(row.time(f)));
    }
  }
  out.push_back(format_duration(f.duration()));
  return out;
}

Shown headline(const RankAnalysis& rank, Style style) {
  const WindowFigures& f = rank.figures;
  if (rank.device && rank.streams.empty()) {
    return bold(
               show("rank {}: no kernels in the trace, so no figures (see diagnostics)", rank.rank),
               style) +
           "\n";
  }
  const std::vector<std::string> shown = shown_parts(f);
  Shown out = bold(show("rank {}: {} of {} communication hidden under compute ({})", rank.rank,
                        format_duration(f.overlap), format_duration(f.comm),
                        f.comm == 0 ? "no communication" : format_percent(f.overlap_ratio())),
                   style);
  out += rank.steps.empty()
             ? Shown(", the whole trace: it has no steps\n")
             : show(", {} step{}\n", rank.steps.size(), rank.steps.size() == 1 ? "" : "s");
  Table table({{"", Align::kLeft}, {"time"}, {"share"}});
  table.row({"  compute", shown[0], format_percent(fraction_of(f.compute, f.duration()))});
  table.row({"+ exposed communication", shown[1],
             format_percent(fraction_of(f.exposed_comm, f.duration()))});
  table.highlight();
  table.row(
      {"+ exposed copies", shown[2], format_percent(fraction_of(f.exposed_copy, f.duration()))});
  table.row({"+ idle", shown[3], format_percent(fraction_of(f.idle, f.duration()))});
  table.row({rank.device          ? "= span of the device's events"
             : rank.steps.empty() ? "= span"
                                  : "= steps",
             shown[4], "100.0 %"});
  return out + table.render(style) + device_line(rank);
}

struct UnitRow {
  std::string unit, collective;
  analysis::UnitPart part;
  PartFigures figures;
};

std::string duration_or_dash(const std::optional<Nanoseconds>& value) {
  return value ? format_duration(*value) : "-";
}

// Adds the figures of another unit of blocks alike.
void add_figures(PartFigures& sum, const PartFigures& more) {
  if (more.exposed > sum.exposed) {
    sum.cause = more.cause;
    sum.lead = more.lead;
  }
  sum.count += more.count;
  sum.bytes += more.bytes;
  sum.busy += more.busy;
  sum.exposed += more.exposed;
}

// The rows of a unit; UnitPart::kOther by what its collectives are called.
void add_unit_rows(const analysis::UnitFigures& unit, std::vector<UnitRow>& rows) {
  const std::string name = unit.is_unit ? shown_unit(unit.fqn) : unit.fqn;
  for (int i = 0; i < analysis::kUnitPartCount; ++i) {
    const auto part = static_cast<UnitPart>(i);
    const auto& figures = unit.parts[static_cast<size_t>(i)];
    if (figures && (part != UnitPart::kOther || unit.others.empty())) {
      rows.push_back({name, std::string(analysis::name_of(part)), part, *figures});
    }
  }
  for (const analysis::NamedPart& each : unit.others) {
    rows.push_back({unit.fqn == "<none>" && !unit.is_unit ? "-" : name, each.name, UnitPart::kOther,
                    each.figures});
  }
}

// One row for each part of blocks alike, without the outliers, which have their own rows.
void add_block_rows(const RankAnalysis& rank,
                    const analysis::BlockFigures& block,
                    std::vector<UnitRow>& rows) {
  const size_t first = rows.size();
  std::vector<UnitRow> own;
  for (const uint32_t u : block.units) {
    const bool outlier =
        std::find(block.outliers.begin(), block.outliers.end(), u) != block.outliers.end();
    if (outlier) {
      add_unit_rows(rank.units[u], own);
      continue;
    }
    std::vector<UnitRow> each;
    add_unit_rows(rank.units[u], each);
    for (UnitRow& row : each) {
      const auto same = std::find_if(
          rows.begin() + static_cast<std::ptrdiff_t>(first), rows.end(),
          [&](const UnitRow& r) { return r.part == row.part && r.collective == row.collective; });
      if (same == rows.end()) {
        row.unit = block.outliers.empty() ? block.name : block.name + " (others)";
        rows.push_back(std::move(row));
      } else {
        add_figures(same->figures, row.figures);
      }
    }
  }
  rows.insert(rows.end(), own.begin(), own.end());
}

std::vector<UnitRow> unit_rows(const RankAnalysis& rank, bool each_unit) {
  std::vector<UnitRow> rows;
  std::vector<bool> done(rank.units.size(), false);
  for (size_t u = 0; u < rank.units.size(); ++u) {
    const auto block =
        std::find_if(rank.blocks.begin(), rank.blocks.end(), [&](const analysis::BlockFigures& b) {
          return !each_unit && std::find(b.units.begin(), b.units.end(), u) != b.units.end();
        });
    if (block == rank.blocks.end()) {
      add_unit_rows(rank.units[u], rows);
    } else if (!done[u]) {
      add_block_rows(rank, *block, rows);
      for (const uint32_t member : block->units) {
        done[member] = true;
      }
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const UnitRow& a, const UnitRow& b) {
    return a.figures.exposed > b.figures.exposed;
  });
  return rows;
}

Shown unit_table(const RankAnalysis& rank, const TextOptions& options, CausesOfParts& causes) {
  const std::vector<UnitRow> rows = unit_rows(rank, options.each_unit);
  Table table({{"unit", Align::kLeft},
               {"collective", Align::kLeft},
               {"count"},
               {"bytes"},
               {"busy"},
               {"exposed"},
               {"lead"},
               {"cause", Align::kLeft},
               {"issued by", Align::kLeft}});
  int64_t rest = 0;
  Nanoseconds rest_exposed = 0, total = 0;
  for (const UnitRow& row : rows) {
    const PartFigures& f = row.figures;
    total += f.exposed;
    if (options.top && table.rows() >= *options.top) {
      ++rest;
      rest_exposed += f.exposed;
      continue;
    }
    table.row({row.unit, row.collective, std::to_string(f.count), format_message(f.bytes),
               format_duration(f.busy), format_duration(f.exposed), duration_or_dash(f.lead),
               f.cause ? std::string(words_of(*f.cause)) : "hidden",
               f.issued_by ? std::string(schedule::name_of(*f.issued_by)) : "-"});
    if (f.cause) {
      causes.insert({*f.cause, row.part});
      table.highlight();
    }
  }
  if (rest > 0) {
    table.row({fmt::format("({} more)", rest), "", "", "", "", format_duration(rest_exposed)});
  }
  table.row({"sum", "", "", "", "", format_duration(total)});
  return table.render(options.style);
}

// The compute time of each unit; "" if the trace has no owners of compute.
Shown work_table(const RankAnalysis& rank, Style style) {
  Table table({{"unit", Align::kLeft},
               {"compute forward"},
               {"compute backward"},
               {"compute"},
               {"exposed copies"}});
  bool any = false;
  for (const analysis::UnitFigures& unit : rank.units) {
    any = any || unit.compute > 0;
    if (unit.compute == 0 && unit.exposed_copy == 0) {
      continue;  // DDP's buckets
    }
    table.row({shown_unit(unit.fqn), unit.is_unit ? format_duration(unit.compute_forward) : "",
               unit.is_unit ? format_duration(unit.compute_backward) : "",
               format_duration(unit.compute), format_duration(unit.exposed_copy)});
  }
  return any ? "\n" + table.render(style) : Shown();
}

// How the owners of captured work were found; "" if there is none.
Shown attribution_text(const RankAnalysis& rank, Style style) {
  if (rank.attribution.empty()) {
    return {};
  }
  Table table({{"attributed by", Align::kLeft},
               {"what", Align::kLeft},
               {"count"},
               {"share of count"},
               {"time"},
               {"share of time"}});
  for (const analysis::AttributionFigures& each : rank.attribution) {
    table.row({std::string(analysis::name_of(each.basis)),
               std::string(analysis::name_of(each.nature)), std::to_string(each.count),
               format_percent(each.count_share), format_duration(each.time),
               format_percent(each.time_share)});
  }
  return "\n" + table.render(style);
}

// Columns `first` and those of the figure table.
Table figures_table(std::vector<Table::Column> first) {
  for (const analysis::FigureRow& row : analysis::figure_table()) {
    if (row.column) {
      first.push_back({std::string(row.label)});
    }
  }
  return Table(std::move(first));
}

void figures_row(Table& table, std::vector<std::string> first, const WindowFigures& f) {
  const std::vector<std::string> parts = shown_parts(f);  // the window last
  size_t part = 0;
  for (const analysis::FigureRow& row : analysis::figure_table()) {
    if (!row.column) {
      continue;
    }
    if (row.time == nullptr) {
      first.push_back(format_percent(row.ratio(f)));
    } else if (row.key == "span_ns") {
      first.push_back(parts.back());
    } else {
      first.push_back(row.part ? parts[part++] : format_duration(row.time(f)));
    }
  }
  table.row(std::move(first));
}

Shown step_table(const Analysis& analysis, const TextOptions& options) {
  Table table = figures_table({{"rank"}, {"step"}});
  size_t left_out = 0;
  for (const RankAnalysis& rank : analysis.ranks) {
    for (const analysis::StepAnalysis& step : rank.steps) {
      if (options.top && table.rows() >= *options.top) {
        ++left_out;
        continue;
      }
      figures_row(table, {std::to_string(rank.rank), std::to_string(step.step)}, step.figures);
    }
  }
  return table.render(options.style) +
         (left_out == 0 ? Shown() : show("({} more steps)\n", left_out));
}

Shown rank_table(const Analysis& analysis, const TextOptions& options) {
  Table table = figures_table({{"rank"}});
  for (const RankAnalysis& rank : analysis.ranks) {
    figures_row(table, {std::to_string(rank.rank)}, rank.figures);
  }
  return table.render(options.style);
}

Shown stream_table(const Analysis& analysis, const TextOptions& options) {
  Table table({{"rank"}, {"stream", Align::kLeft}, {"busy"}, {"share"}});
  for (const RankAnalysis& rank : analysis.ranks) {
    for (const analysis::StreamFigures& stream : rank.streams) {
      table.row({std::to_string(rank.rank), stream.name, format_duration(stream.busy),
                 format_percent(fraction_of(stream.busy, rank.figures.duration()))});
    }
  }
  return table.render(options.style);
}

std::string difference_words(const analysis::Difference& d,
                             std::string_view expected,
                             std::string_view found) {
  std::string out = fmt::format("differs first in step {} at collective {}: {} {}, {} {}", d.step,
                                d.index + 1, expected, d.expected_words(), found, d.found_words());
  for (const analysis::CountDifference& count : d.counts) {
    out += fmt::format("; {}: {} {} times, {} {} times", analysis::to_string(count.entry), expected,
                       count.expected, found, count.found);
  }
  return out;
}

Shown check_words(const analysis::OrderCheck& check,
                  std::string_view expected,
                  std::string_view found,
                  std::string_view meaning,
                  std::string_view absent) {
  const std::string pair = fmt::format("{} and {} order", expected, found);
  if (check.compared == 0) {
    return show("{} not compared: {}\n", pair, absent);
  }
  if (!check.first_difference) {
    return show("{} agree on {} collectives\n", pair, check.compared);
  }
  return show("{} {}; {}\n", pair, difference_words(*check.first_difference, expected, found),
              meaning);
}

Shown order_words(const Analysis& analysis, Style style) {
  Shown out = bold("order", style) + "\n";
  // Each text with the ranks it applies to.
  std::vector<std::pair<Shown, std::vector<int64_t>>> said;
  for (const RankAnalysis& rank : analysis.ranks) {
    const Shown words =
        check_words(rank.order.planned_vs_issued, "planned", "issued",
                    "hooks ran in another order than planned (model code, "
                    "autograd, frozen views), or the engine did not follow "
                    "the plan",
                    "no plan with the trace, no actions in it (of PyTorch's programs "
                    "shardlens.record records those of FSDP2), or no collectives, as over one "
                    "rank") +
        check_words(rank.order.issued_vs_started, "issued", "started",
                    "a collective was queued or delayed on its communicator",
                    "no actions or no collectives in the trace");
    const auto same = std::find_if(said.begin(), said.end(),
                                   [&](const auto& each) { return each.first == words; });
    if (same == said.end()) {
      said.push_back({words, {rank.rank}});
    } else {
      same->second.push_back(rank.rank);
    }
  }
  for (const auto& [words, ranks] : said) {
    if (said.size() > 1) {
      out += show("rank{} {}:\n", ranks.size() == 1 ? "" : "s", show_joined(ranks, ", "));
    }
    out += words;
  }
  return out;
}

// The first names of a list, and the total number if there are more.
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 12;
  const size_t shown = std::min(names.size(), kShown);
  std::string out = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
  return shown < names.size() ? out + fmt::format(", … ({} in all)", names.size()) : out;
}

Shown frozen_views_words(const Analysis& analysis, Style style) {
  const RankAnalysis* worst = nullptr;
  for (const RankAnalysis& rank : analysis.ranks) {
    if (rank.frozen_views &&
        (worst == nullptr || rank.frozen_views->lost > worst->frozen_views->lost)) {
      worst = &rank;
    }
  }
  if (worst == nullptr) {
    return {};
  }
  const analysis::FrozenViews& frozen = *worst->frozen_views;
  Shown out = "\n" + bold("frozen views", style) + "\n";
  out += show(
      "rank {}: in {} backward{} the gradients of {} were reduced only after the whole backward, "
      "although they were complete earlier\n",
      worst->rank, frozen.backwards, frozen.backwards == 1 ? "" : "s", listed(frozen.late));
  out += show("  order found:      {}\n", listed(frozen.found));
  out += show("  with fresh views: {}\n", listed(frozen.fresh));
  out += show("  lost: {} of {} ({}), which could have overlapped with backward\n",
              format_duration(frozen.lost), format_duration(worst->figures.duration()),
              format_percent(fraction_of(frozen.lost, worst->figures.duration())));
  out +=
      "  what to do: create the parameter views in each forward (\"views\": \"fresh\"); a captured "
      "or cached graph creates them only once\n";
  return out;
}

Shown diagnostics_words(const Analysis& analysis, Style style) {
  if (analysis.diagnostics.empty()) {
    return {};
  }
  Shown out = "\n" + bold("diagnostics", style) + "\n";
  for (const trace::Diagnostic& d : analysis.diagnostics) {
    out += show("{}: {}{}\n", trace::name_of(d.severity), d.message,
                d.count == 1 ? "" : fmt::format(" ({} times)", d.count));
  }
  return out;
}

const RankAnalysis& most_exposed(const Analysis& analysis) {
  return *std::max_element(analysis.ranks.begin(), analysis.ranks.end(),
                           [](const RankAnalysis& a, const RankAnalysis& b) {
                             return a.figures.exposed_comm < b.figures.exposed_comm;
                           });
}

Shown units_section(const Analysis& analysis, const TextOptions& options) {
  const RankAnalysis& rank = most_exposed(analysis);
  if (rank.units.empty()) {
    return {};
  }
  CausesOfParts causes;
  Shown out = "\n" +
              bold(analysis.ranks.size() == 1 ? Shown("units")
                                              : show("units of rank {} (most exposed)", rank.rank),
                   options.style) +
              "\n";
  out += unit_table(rank, options, causes);
  out += causes_text(causes) + blocks_text(rank, options.style);
  return out + work_table(rank, options.style) + attribution_text(rank, options.style) +
         groups_text(rank, options.style) + purposes_text(rank, options.style);
}

}  // namespace

Shown analysis_text(const Analysis& analysis, const TextOptions& options) {
  Shown out;
  for (const RankAnalysis& rank : analysis.ranks) {
    out += headline(rank, options.style);
  }
  switch (options.by) {
    case By::kUnit:
      out += units_section(analysis, options);
      break;
    case By::kCollective:
      out += "\n" + collectives_section(analysis, options.top, options.style);
      break;
    case By::kStep:
      out += "\n" + step_table(analysis, options);
      break;
    case By::kRank:
      out += "\n" + rank_table(analysis, options) + ranks_section(analysis, options.style) +
             memory_section(analysis, options.style);
      break;
    case By::kStream:
      out += "\n" + stream_table(analysis, options);
      break;
    case By::kSpan:
      out += "\n" + spans_text(analysis, options.top, options.style);
      break;
    case By::kOrder:
      out += "\n" + observed_text(analysis, options.style);
      break;
    case By::kGroup:
      out += "\n" + overlaps_text(analysis, options.top, options.style);
      break;
  }
  if (options.explained) {
    out += explained_text(analysis, *options.explained, options.top, options.style);
  }
  out += critical_path_section(analysis, options.top, options.style);
  out += waste_text(analysis, options.style);
  return out + frozen_views_words(analysis, options.style) + "\n" +
         order_words(analysis, options.style) + diagnostics_words(analysis, options.style);
}

}  // namespace shardlens::report
