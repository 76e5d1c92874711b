#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include "core/base/heap.h"
#include "core/base/standard_output.h"
#include "profiler/analysis/analysis.h"
#include "profiler/analysis/compat/hta.h"
#include "profiler/analysis/recover/recorded_program.h"
#include "profiler/report/analysis_report.h"
#include "profiler/report/hta_report.h"
#include "profiler/trace/run.h"

#include "cli/command/subcommand.h"
#include "cli/flags/analysis_flags.h"
#include "cli/flags/given_plan.h"
#include "cli/flags/outputs.h"
#include "cli/flags/parse_flags.h"
#include "cli/flags/table_flags.h"
#include "cli/results/output.h"
#include "cli/results/rank_summaries.h"

namespace shardlens::cli {
namespace {

struct AnalyzeOptions {
  AnalysisFlags analysis;
  TableFlags table;
  GivenPlan plan;
  bool critical_path = false, summarize = false;
  std::string compat;
  Outputs outputs;
  std::optional<std::string> explain;
};

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
  const report::By by = options.table.table();
  const auto top = options.table.rows();
  analysis::AnalysisOptions settings = analysis_options(options.analysis.selection);
  if (options.summarize) {
    keep_freed_memory();  // what one figure needs is used again by the next
    const std::vector<WrittenSummary> written = write_summaries(
        options.analysis.paths, options.outputs, settings, options.analysis.selection.comm_regex);
    if (options.table.json) {
      write_data(summaries_json(written));
    } else {
      write_stdout(summaries_text(written));
    }
    return ExitCode::kOk;
  }
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
  read.keep_flows = false;
  const trace::Run opened = analysis::open_run(
      options.analysis.paths, read, [&options](trace::Run& run) { options.plan.give(run); });
  if (!options.compat.empty()) {
    const auto ranks = analysis::hta_figures(opened.traces);
    if (options.table.json || options.table.csv) {
      write_data(options.table.json ? report::hta_json(ranks) : report::hta_csv(ranks));
    } else {
      write_stdout(report::hta_text(ranks, style_of_stdout()));
    }
    return ExitCode::kOk;
  }
  keep_freed_memory();  // not before: tables that grow while a trace is read would be copied
  const analysis::Analysis result = analysis::analyze(opened, settings);
  if (settings.explained) {
    require_unit(result, *settings.explained);
  }
  if (options.table.json) {
    write_data(report::analysis_json(result));
  } else if (options.table.csv) {
    write_data(report::analysis_csv(result, by));
  } else {
    write_stdout(report::analysis_text(
        result, {by, top, options.table.each, settings.explained, style_of_stdout()}));
  }
  return ExitCode::kOk;
}

}  // namespace

Action add_analyze_command(CLI::App& app) {
  auto options = std::make_shared<AnalyzeOptions>();
  add_analysis_flags(app, options->analysis);
  add_table_flags(app, options->table);
  add_given_plan(app, options->plan);
  CLI::Option *by = app.get_option("--by"), *csv = app.get_option("--csv");
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
       {by, explain, path, app.get_option("--steps"), app.get_option("--comm-regex"),
        app.get_option("--device"), app.get_option("--model")}) {
    compat->excludes(other);
  }
  CLI::Option* summarize =
      app.add_flag("--summarize", options->summarize,
                   "write a summary of each rank's trace, a small file for `shardlens merge`");
  for (CLI::Option* other : {csv, by, app.get_option("--top"), app.get_option("--each"), explain,
                             path, compat, app.get_option("--model")}) {
    summarize->excludes(other);
  }
  options->outputs
      .add(app, "--out", "with --summarize: the directory for the summaries [next to each trace]")
      ->needs(summarize);
  return [options] { return run(*options); };
}

}  // namespace shardlens::cli
