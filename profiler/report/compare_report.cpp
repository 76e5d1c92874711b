#include "profiler/report/compare_report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/show.h"
#include "core/json/json_dump.h"
#include "profiler/report/check_report.h"
#include "profiler/report/optional_values.h"

namespace shardlens::report {
namespace {

using check::Comparison;
using check::ItemChange;
using Json = nlohmann::ordered_json;

std::string ms(const std::optional<double>& ns) {
  return ns ? fmt::format("{:.3f} ms", *ns / 1e6) : "-";
}

}  // namespace

std::string compare_json(const Comparison& comparison) {
  Json out = Json::parse(check_json(comparison.result));
  for (const char* key : {"verdict", "reason", "alpha"}) {
    out.erase(key);
  }
  for (Json& metric : out["metrics"]) {
    for (const char* key : {"gates", "threshold", "verdict", "threshold_ns", "detectable_ns",
                            "upper_bound_ns", "enough"}) {
      metric.erase(key);
    }
  }
  for (Json& peak : out["memory"]) {
    for (const char* key : {"gates", "allowed_bytes", "verdict"}) {
      peak.erase(key);
    }
  }
  for (size_t i = 0; i < comparison.result.metrics.size(); ++i) {
    const check::MetricResult& m = comparison.result.metrics[i];
    out["metrics"][i]["within_noise"] = m.effect.measurable() ? Json(!m.moved()) : Json(nullptr);
  }
  Json& items = out["items"] = Json::array();
  for (const ItemChange& item : comparison.items) {
    items.push_back({{"section", item.key.section},
                     {"unit", item.key.unit},
                     {"kind", item.key.kind},
                     {"occurrence", item.key.occurrence},
                     {"baseline_ns", or_null(item.baseline)},
                     {"candidate_ns", or_null(item.candidate)},
                     {"delta_ns", item.delta},
                     {"baseline_exposed_ns", or_null(item.baseline_exposed)},
                     {"candidate_exposed_ns", or_null(item.candidate_exposed)},
                     {"within_noise", item.matched() ? Json(item.within_noise) : Json(nullptr)}});
  }
  return plan::json_text(out) + "\n";
}

Shown compare_text(const Comparison& comparison, Style style) {
  Shown out = check_text(comparison.result, style);
  Table table({{"section", Align::kLeft},
               {"unit", Align::kLeft},
               {"what", Align::kLeft},
               {"n-th"},
               {"A"},
               {"B"},
               {"change"},
               {"exposed A"},
               {"exposed B"}});
  size_t within = 0;
  double sum = 0;
  for (const ItemChange& item : comparison.items) {
    if (item.matched() && item.within_noise) {
      ++within;
      sum += item.delta;
      continue;
    }
    table.row({item.key.section, check::unit_name(item.key.unit), item.key.kind,
               std::to_string(item.key.occurrence + 1), ms(item.baseline), ms(item.candidate),
               item.matched()  ? fmt::format("{:+.3f} ms", item.delta / 1e6)
               : item.baseline ? "only in A"
                               : "only in B",
               ms(item.baseline_exposed), ms(item.candidate_exposed)});
  }
  if (table.rows() > 0) {
    out += show("\n{}", table.render(style));
  }
  out += show("\n{} of {} items changed by no more than noise ({:+.3f} ms in all)\n", within,
              comparison.items.size(), sum / 1e6);
  return out;
}

}  // namespace shardlens::report
