#include "cli/results/plan_lints_text.h"

#include <string>

#include <fmt/format.h>

#include "core/base/show.h"
#include "profiler/report/findings_text.h"

namespace shardlens::cli {

nlohmann::ordered_json lints_json(const std::vector<schedule::PlanLint>& lints) {
  auto out = nlohmann::ordered_json::array();
  for (const schedule::PlanLint& each : lints) {
    out.push_back({{"kind", schedule::name_of(each.kind)},
                   {"unit", each.unit},
                   {"units", each.units},
                   {"evidence", each.evidence},
                   {"remedy", schedule::remedy_of(each.kind)}});
  }
  return out;
}

Shown lints_text(const std::vector<schedule::PlanLint>& lints, report::Style style) {
  if (lints.empty()) {
    return {};
  }
  Shown out = "\n" + report::bold(Literal("slow in every step of this plan"), style) + "\n";
  for (const schedule::PlanLint& each : lints) {
    const std::string more = each.units > 1 ? fmt::format(" and {} more", each.units - 1) : "";
    out += show("{}{}: {}\n  {}\n", report::shown_unit(each.unit), more, each.evidence,
                schedule::remedy_of(each.kind));
  }
  return out;
}

}  // namespace shardlens::cli
