#include <memory>
#include <string>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "profiler/analysis/analysis.h"
#include "profiler/analysis/compat/hta.h"
#include "profiler/analysis/recover/recorded_program.h"
#include "profiler/report/analysis_report.h"
#include "profiler/report/hta_report.h"
#include "profiler/trace/run.h"

#include "cli/command/subcommand.h"
#include "cli/flags/analysis_flags.h"
#include "cli/flags/parse_flags.h"
#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

struct AnalyzeOptions {
  AnalysisFlags analysis;
  bool json = false, csv = false, critical_path = false, each = false;
  std::string by = "unit", compat;
  std::optional<std::string> explain;
  std::optional<int64_t> top;
};

report::By by_of(const std::string& name) {
  constexpr std::string_view kNames[] = {"unit",   "collective", "step", "rank",
                                         "stream", "span",       "order"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name) {
      return static_cast<report::By>(i);
    }
  }
  throw UsageError(fmt::format(
      "--by: expected unit, collective, step, rank, stream, span or order, found '{}'", name));
}

// Errors: UsageError if no rank has the unit.
void require_unit(const analysis::Analysis& analysis, const std::string& unit) {
  std::vector<std::string> names;
  for (const analysis::RankAnalysis& rank : analysis.ranks) {
    for (const analysis::UnitFigures& each : rank.units) {
      if (each.fqn == unit) {
        return;
      }
      names.push_back(each.fqn.empty() ? "(root)" : each.fqn);
    }
  }
  throw UsageError(
      fmt::format("--explain: no unit '{}' in the trace{}", unit, did_you_mean(unit, names)));
}

ExitCode run(const AnalyzeOptions& options) {
  const report::By by = by_of(options.by);
  if (options.top && *options.top < 1) {
    throw UsageError(
        fmt::format("--top: expected a number of rows from 1, found {}", *options.top));
  }
  analysis::AnalysisOptions settings = analysis_options(options.analysis.selection);
  settings.detail =
      by == report::By::kSpan ? analysis::DetailLevel::kAll : analysis::DetailLevel::kNone;
  settings.critical_path = options.critical_path;
  if (options.explain) {
    settings.explained = *options.explain == "(root)" ? "" : *options.explain;
    if (settings.detail == analysis::DetailLevel::kNone) {
      settings.detail = analysis::DetailLevel::kCollectives;
    }
  }
  if (!options.compat.empty() && options.compat != "hta") {
    throw UsageError(fmt::format("--compat: expected hta, found '{}'", options.compat));
  }
  trace::ReadOptions read;
  read.keep_args = !options.compat.empty();
  const trace::Run opened = analysis::open_run(options.analysis.paths, read);
  if (!options.compat.empty()) {
    const auto ranks = analysis::hta_figures(opened.traces);
    write_stdout(options.json  ? report::hta_json(ranks)
                 : options.csv ? report::hta_csv(ranks)
                               : report::hta_text(ranks, style_of_stdout()));
    return ExitCode::kOk;
  }
  const analysis::Analysis result = analysis::analyze(opened, settings);
  if (settings.explained) {
    require_unit(result, *settings.explained);
  }
  if (options.json) {
    write_stdout(report::analysis_json(result));
  } else if (options.csv) {
    write_stdout(report::analysis_csv(result, by));
  } else {
    const auto top = options.top ? std::optional(static_cast<size_t>(*options.top)) : std::nullopt;
    write_stdout(report::analysis_text(
        result, {by, top, options.each, settings.explained, style_of_stdout()}));
  }
  return ExitCode::kOk;
}

}  // namespace

Action add_analyze_command(CLI::App& app) {
  auto options = std::make_shared<AnalyzeOptions>();
  add_analysis_flags(app, options->analysis);
  CLI::Option* json =
      app.add_flag("--json", options->json, "machine-readable output, see docs/metrics.md");
  CLI::Option* csv = app.add_flag("--csv", options->csv, "print the table of --by as CSV");
  csv->excludes(json);
  CLI::Option* by =
      app.add_option("--by", options->by,
                     "table: unit, collective, step, rank, stream, span (each collective, copy and "
                     "period of compute) or order (each step's actions, by unit)")
          ->capture_default_str();
  app.add_option("--top", options->top,
                 "show at most N rows, the most exposed ones; the others are summed up");
  app.add_flag("--each", options->each, "a row for each unit, also for those of blocks alike");
  CLI::Option* explain =
      app.add_option("--explain", options->explain,
                     "show for each exposed collective of UNIT ('(root)': the root) the events "
                     "that prove its cause")
          ->type_name("UNIT");
  explain->excludes(csv);
  CLI::Option* path =
      app.add_flag("--critical-path", options->critical_path,
                   "the critical path of each step: compute, communication, copies, host, "
                   "launches, idle");
  path->excludes(csv);
  CLI::Option* compat =
      app.add_option("--compat", options->compat,
                     "hta: the figures of Holistic Trace Analysis, by its definitions");
  // Its definitions have no such options.
  for (CLI::Option* other :
       {by, explain, path, app.get_option("--steps"), app.get_option("--comm-regex")}) {
    compat->excludes(other);
  }
  return [options] { return run(*options); };
}

}  // namespace shardlens::cli
