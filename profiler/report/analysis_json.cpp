#include <utility>

#include <nlohmann/json.hpp>

#include "core/json/json_dump.h"
#include "profiler/analysis/units/part_table.h"
#include "profiler/report/analysis_report.h"
#include "profiler/report/figures_json.h"
#include "profiler/report/json_pieces.h"
#include "profiler/report/optional_values.h"

namespace shardlens::report {
namespace {

using analysis::OrderCheck;
using analysis::OrderEntry;
using analysis::PartFigures;
using analysis::UnitPart;
using analysis::WindowFigures;
using nlohmann::ordered_json;

ordered_json part_json(const std::optional<PartFigures>& part) {
  if (!part) {
    return nullptr;
  }
  ordered_json out;
  for (const analysis::PartFigureRow& row : analysis::part_figure_table()) {
    out[std::string(row.key)] =
        row.is_word() ? or_null(row.word(*part)) : or_null(row.number(*part));
  }
  return out;
}

ordered_json unit_json(const analysis::UnitFigures& unit) {
  ordered_json out;
  out["fqn"] = unit.fqn;
  for (int i = 0; i < analysis::kUnitPartCount; ++i) {
    const auto part = static_cast<UnitPart>(i);
    const auto& figures = unit.parts[static_cast<size_t>(i)];
    const bool always = part != UnitPart::kAllReduce && part != UnitPart::kOther;
    if (always || figures) {
      out[std::string(analysis::name_of(part))] = part_json(figures);
    }
  }
  if (unit.is_unit) {
    out["compute_forward_ns"] = unit.compute_forward;
    out["compute_backward_ns"] = unit.compute_backward;
  }
  out["compute_ns"] = unit.compute;
  out["exposed_copy_ns"] = unit.exposed_copy;
  if (!unit.others.empty()) {
    out["others"] = ordered_json::array();
    for (const analysis::NamedPart& each : unit.others) {
      ordered_json one = part_json(each.figures);
      one["name"] = each.name;
      out["others"].push_back(std::move(one));
    }
  }
  return out;
}

ordered_json spread_json(const analysis::RankAnalysis& rank, const analysis::BlockSpread& spread) {
  return {{"sum_ns", spread.sum},
          {"median_ns", spread.median},
          {"worst_ns", spread.worst},
          {"worst_unit", rank.units[spread.worst_unit].fqn}};
}

ordered_json blocks_json(const analysis::RankAnalysis& rank) {
  ordered_json out = ordered_json::array();
  for (const analysis::BlockFigures& block : rank.blocks) {
    ordered_json one{{"name", block.name}};
    for (const auto& [key, list] :
         {std::pair{"units", &block.units}, std::pair{"outliers", &block.outliers}}) {
      one[key] = ordered_json::array();
      for (const uint32_t unit : *list) {
        one[key].push_back(rank.units[unit].fqn);
      }
    }
    one["exposed"] = spread_json(rank, block.exposed);
    one["compute"] = spread_json(rank, block.compute);
    for (size_t i = 0; i < block.parts.size(); ++i) {
      if (const auto& part = block.parts[i]) {
        one[std::string(analysis::name_of(static_cast<UnitPart>(i)))] = spread_json(rank, *part);
      }
    }
    out.push_back(std::move(one));
  }
  return out;
}

ordered_json groups_json(const analysis::RankAnalysis& rank) {
  ordered_json out = ordered_json::array();
  for (const analysis::GroupFigures& group : rank.groups) {
    ordered_json one{{"name", group.name},
                     {"ranks", group.ranks},
                     {"size", group.size == 0 ? ordered_json(nullptr) : ordered_json(group.size)},
                     {"count", group.count},
                     {"bytes", message_json(group.bytes)},
                     {"busy_ns", group.busy},
                     {"exposed_ns", group.exposed},
                     {"under_compute_ns", group.under_compute}};
    one["under_ns"] = ordered_json::object();
    for (size_t i = 0; i < group.under.size(); ++i) {
      one["under_ns"][rank.groups[i].name] = group.under[i];
    }
    out.push_back(std::move(one));
  }
  return out;
}

ordered_json waste_json(const analysis::RankAnalysis& rank) {
  ordered_json out = ordered_json::array();
  for (const analysis::Waste& waste : rank.waste) {
    out.push_back({{"kind", name_of(waste.kind)},
                   {"where", waste.where},
                   {"count", waste.count},
                   {"lost_ns", waste.lost}});
  }
  return out;
}

ordered_json entry_json(const std::optional<OrderEntry>& entry, const std::string& words) {
  return entry ? ordered_json(words) : ordered_json(nullptr);
}

ordered_json check_json(const OrderCheck& check) {
  ordered_json out{{"compared", check.compared}};
  out["first_difference"] = nullptr;
  if (const auto& d = check.first_difference) {
    out["first_difference"] = {{"step", d->step},
                               {"index", d->index},
                               {"expected", entry_json(d->expected, d->expected_words())},
                               {"found", entry_json(d->found, d->found_words())}};
    auto counts = ordered_json::array();
    for (const analysis::CountDifference& count : d->counts) {
      counts.push_back({{"collective", analysis::to_string(count.entry)},
                        {"expected", count.expected},
                        {"found", count.found}});
    }
    out["first_difference"]["counts"] = std::move(counts);
  }
  return out;
}

ordered_json rank_json(const analysis::RankAnalysis& rank) {
  ordered_json out{{"rank", rank.rank}};
  put_figures(out, rank.figures);
  out["idle"] = idle_json(rank.idle);
  out["event_wait"] = {{"graph_ns", rank.idle.graph}, {"inferred_ns", rank.idle.inferred}};
  put_device_sections(out, rank);
  out["steps"] = ordered_json::array();
  for (const analysis::StepAnalysis& step : rank.steps) {
    ordered_json one{{"step", step.step}};
    put_figures(one, step.figures);
    one["idle"] = idle_json(step.idle);
    out["steps"].push_back(std::move(one));
  }
  out["units"] = ordered_json::array();
  for (const analysis::UnitFigures& unit : rank.units) {
    out["units"].push_back(unit_json(unit));
  }
  out["blocks"] = blocks_json(rank);
  out["groups"] = groups_json(rank);
  out["communication"] = communication_json(rank.communication);
  if (!rank.attribution.empty()) {
    out["attribution"] = attribution_json(rank.attribution);
  }
  out["waste"] = waste_json(rank);
  out["frozen_views"] = nullptr;
  if (const auto& frozen = rank.frozen_views) {
    out["frozen_views"] = {{"backwards", frozen->backwards},
                           {"late", frozen->late},
                           {"lost_ns", frozen->lost},
                           {"found", frozen->found},
                           {"fresh", frozen->fresh}};
  }
  out["order"] = {{"planned_vs_issued", check_json(rank.order.planned_vs_issued)},
                  {"issued_vs_started", check_json(rank.order.issued_vs_started)},
                  {"observed", observed_json(rank)}};
  if (rank.detail) {
    out["spans"] = spans_json(rank);
  }
  return out;
}

// Each cause that `cause` may name, with what it means.
ordered_json causes_json() {
  ordered_json out;
  for (int i = 0; i < analysis::kExposedCauseCount; ++i) {
    const auto cause = static_cast<analysis::ExposedCause>(i);
    out[std::string(name_of(cause))] = explanation_of(cause);
  }
  return out;
}

// Names come from JSON and should be UTF-8; invalid bytes are replaced, so that the document stays
// valid.
std::string dumped(const ordered_json& json) {
  return plan::json_text(json);
}

}  // namespace

std::string JsonPieces::rank(const analysis::RankAnalysis& rank) {
  return std::string(std::exchange(first_, false) ? R"({"schema":1,"ranks":[)" : ",") +
         dumped(rank_json(rank));
}

std::string JsonPieces::end(const analysis::Analysis& analysis) const {
  ordered_json rest{{"causes", causes_json()}, {"diagnostics", ordered_json::array()}};
  put_matching(rest, analysis.matching);
  for (const trace::Diagnostic& d : analysis.diagnostics) {
    rest["diagnostics"].push_back(
        {{"severity", trace::name_of(d.severity)}, {"message", d.message}, {"count", d.count}});
  }
  return std::string(first_ ? R"({"schema":1,"ranks":[)" : "") + "]," + dumped(rest).substr(1) +
         "\n";
}

std::string analysis_json(const analysis::Analysis& analysis) {
  JsonPieces pieces;
  std::string out;
  for (const analysis::RankAnalysis& rank : analysis.ranks) {
    out += pieces.rank(rank);
  }
  return out + pieces.end(analysis);
}

}  // namespace shardlens::report
