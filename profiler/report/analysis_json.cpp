#include <nlohmann/json.hpp>

#include "profiler/report/analysis_report.h"
#include "profiler/report/figures_json.h"
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
  ordered_json out{{"count", part->count},
                   {"bytes", message_json(part->bytes)},
                   {"busy_ns", part->busy},
                   {"exposed_ns", part->exposed}};
  out["lead_ns"] = or_null(part->lead);
  out["cause"] = part->cause ? ordered_json(name_of(*part->cause)) : ordered_json(nullptr);
  out["issued_by"] =
      part->issued_by ? ordered_json(schedule::name_of(*part->issued_by)) : ordered_json(nullptr);
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
  return out;
}

ordered_json entry_json(const std::optional<OrderEntry>& entry) {
  return entry ? ordered_json(analysis::to_string(*entry)) : ordered_json(nullptr);
}

ordered_json check_json(const OrderCheck& check) {
  ordered_json out{{"compared", check.compared}};
  out["first_difference"] = nullptr;
  if (const auto& d = check.first_difference) {
    out["first_difference"] = {{"step", d->step},
                               {"index", d->index},
                               {"expected", entry_json(d->expected)},
                               {"found", entry_json(d->found)}};
  }
  return out;
}

ordered_json rank_json(const analysis::RankAnalysis& rank) {
  ordered_json out{{"rank", rank.rank}};
  put_figures(out, rank.figures);
  out["idle"] = idle_json(rank.idle);
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

}  // namespace

std::string analysis_json(const analysis::Analysis& analysis) {
  ordered_json out{
      {"schema", 1}, {"ranks", ordered_json::array()}, {"diagnostics", ordered_json::array()}};
  for (const analysis::RankAnalysis& rank : analysis.ranks) {
    out["ranks"].push_back(rank_json(rank));
  }
  put_matching(out, analysis.matching);
  for (const trace::Diagnostic& d : analysis.diagnostics) {
    out["diagnostics"].push_back(
        {{"severity", trace::name_of(d.severity)}, {"message", d.message}, {"count", d.count}});
  }
  // Names come from JSON and should be UTF-8; invalid bytes are replaced, so that the document
  // stays valid.
  return out.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace shardlens::report
