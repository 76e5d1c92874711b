#include "profiler/report/hta_report.h"

#include <array>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/json/json_dump.h"

namespace shardlens::report {
namespace {

using analysis::HtaFigures;

constexpr std::array<const char*, 9> kColumns{"rank",
                                              "comp_comm_overlap_pctg",
                                              "idle_time(us)",
                                              "compute_time(us)",
                                              "non_compute_time(us)",
                                              "kernel_time(us)",
                                              "idle_time_pctg",
                                              "compute_time_pctg",
                                              "non_compute_time_pctg"};

std::vector<std::string> cells(const HtaFigures& f) {
  std::vector<std::string> out{
      fmt::format("{}", f.rank),
      f.overlap_percent ? fmt::format("{:.2f}", *f.overlap_percent) : "NaN"};
  if (const auto& t = f.temporal) {
    for (const double us : {t->idle_us, t->compute_us, t->non_compute_us, t->kernel_us}) {
      out.push_back(fmt::format("{}", us));
    }
    for (const double percent : {t->idle_percent, t->compute_percent, t->non_compute_percent}) {
      out.push_back(fmt::format("{:.2f}", percent));
    }
  }
  out.resize(kColumns.size());
  return out;
}

}  // namespace

Shown hta_text(const std::vector<HtaFigures>& ranks, Style style) {
  std::vector<Table::Column> columns;
  for (const char* title : kColumns) {
    columns.push_back({title});
  }
  Table table(std::move(columns));
  bool on_a_device = ranks.empty();
  for (const HtaFigures& f : ranks) {
    table.row(cells(f));
    on_a_device = on_a_device || f.temporal || f.overlap_percent;
  }
  style.width = 0;  // the titles are HTA's names
  return table.render(style) +
         (on_a_device
              ? Shown()
              : Shown("\nHTA has nothing to break down: it counts kernels on the streams of a "
                      "device (args.stream), and\nthese traces have none, as those of CPU "
                      "processes.\n"));
}

std::string hta_csv(const std::vector<HtaFigures>& ranks) {
  std::string out = fmt::format("{}\r\n", fmt::join(kColumns, ","));
  for (const HtaFigures& f : ranks) {
    out += fmt::format("{}\r\n", fmt::join(cells(f), ","));
  }
  return out;
}

std::string hta_json(const std::vector<HtaFigures>& ranks) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const HtaFigures& f : ranks) {
    nlohmann::ordered_json row;
    const auto put = [&](size_t column, const std::optional<double>& value) {
      row[kColumns[column]] =
          value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
    };
    row[kColumns[0]] = f.rank;
    put(1, f.overlap_percent);
    const auto& t = f.temporal;
    size_t column = 2;
    for (const auto member :
         {&HtaFigures::Temporal::idle_us, &HtaFigures::Temporal::compute_us,
          &HtaFigures::Temporal::non_compute_us, &HtaFigures::Temporal::kernel_us,
          &HtaFigures::Temporal::idle_percent, &HtaFigures::Temporal::compute_percent,
          &HtaFigures::Temporal::non_compute_percent}) {
      put(column++, t ? std::optional((*t).*member) : std::nullopt);
    }
    rows.push_back(std::move(row));
  }
  return plan::json_text(
             nlohmann::ordered_json{{"schema", 1}, {"compat", "hta"}, {"ranks", rows}}) +
         "\n";
}

}  // namespace shardlens::report
