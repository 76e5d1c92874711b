#include "profiler/check/check_metrics.h"

#include <algorithm>
#include <array>

#include "profiler/analysis/figures/figure_table.h"

namespace shardlens::check {
namespace {

constexpr std::array kNamed{
    MetricRow{"step_time", true},
    MetricRow{"exposed_comm", true},
    MetricRow{"compute", false, StepPart::kCompute, "compute"},
    MetricRow{"exposed_all_gather_forward", false, StepPart::kExposed, "▨ all-gather, forward"},
    MetricRow{"exposed_all_gather_backward", false, StepPart::kExposed, "▨ all-gather, backward"},
    MetricRow{"exposed_reduction", false, StepPart::kExposed, "▨ reduction"},
    MetricRow{"exposed_other", false, StepPart::kExposed, "▨ other"},
    MetricRow{"exposed_copy", false, StepPart::kCopy, "exposed copies"},
    MetricRow{"idle_host_late", false, StepPart::kIdle, "idle: host late"},
    MetricRow{"idle_event_wait", false, StepPart::kIdle, "idle: waits for events"},
    MetricRow{"idle_gap", false, StepPart::kIdle, "idle: gaps"},
    MetricRow{"idle_unknown", false, StepPart::kIdle, "idle: not known why"},
    MetricRow{"comm"},
    MetricRow{"transfer"},
    MetricRow{"peer_wait"},
    MetricRow{"prefetch_lead"},
};
static_assert(kNamed.size() == static_cast<size_t>(Metric::kFirstOfFigures));

std::vector<MetricRow> all_rows() {
  std::vector<MetricRow> rows(kNamed.begin(), kNamed.end());
  for (const analysis::FigureRow& figure : analysis::figure_table()) {
    const bool known = std::any_of(rows.begin(), rows.end(),
                                   [&](const MetricRow& row) { return row.name == figure.metric; });
    if (!figure.metric.empty() && !known) {
      rows.push_back({figure.metric});
    }
  }
  return rows;
}

}  // namespace

std::span<const MetricRow> metric_table() {
  static const std::vector<MetricRow> kAllRows = all_rows();
  return kAllRows;
}

std::string_view name_of(Metric metric) {
  return metric_table()[static_cast<size_t>(metric)].name;
}

std::optional<Metric> parse_metric(std::string_view name) {
  const std::span<const MetricRow> rows = metric_table();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].name == name) {
      return static_cast<Metric>(i);
    }
  }
  return std::nullopt;
}

}  // namespace shardlens::check
