#include "cli/report_command.h"

#include <filesystem>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include "core/base/atomic_file.h"
#include "profiler/analysis/analysis.h"
#include "profiler/report/html_report.h"
#include "profiler/trace/run.h"

#include "cli/output.h"
#include "cli/step_range.h"

namespace shardlens::cli {
namespace {

struct ReportOptions {
  std::vector<std::filesystem::path> paths;
  std::filesystem::path out;
  std::string steps, comm_regex;
};

ExitCode run(const ReportOptions& options) {
  analysis::AnalysisOptions analysis_options;
  analysis_options.detail = true;
  if (!options.steps.empty()) {
    analysis_options.steps = parse_step_range(options.steps);
  }
  if (!options.comm_regex.empty()) {
    try {
      analysis_options.timeline.communication = std::regex(options.comm_regex);
    } catch (const std::regex_error& error) {
      throw UsageError(fmt::format("--comm-regex: '{}' is no regular expression: {}",
                                   options.comm_regex, error.what()));
    }
  }
  const trace::Run opened = trace::Run::open(options.paths);
  const analysis::Analysis result = analysis::analyze(opened, analysis_options);
  write_file_atomically(options.out, report::html_report(opened, result));
  return ExitCode::kOk;
}

}  // namespace

Action add_report_command(CLI::App& app) {
  auto options = std::make_shared<ReportOptions>();
  app.add_option("paths", options->paths,
                 "capture directories, traces (.json, .json.gz, .json.zst) or spools; one run")
      ->required();
  app.add_option("--out", options->out, "the HTML file to write")->required();
  app.add_option("--steps", options->steps, "A:B: only steps A to B - 1");
  app.add_option("--comm-regex", options->comm_regex,
                 "kernels and operators that communicate too, by name");
  return [options] { return run(*options); };
}

}  // namespace shardlens::cli
