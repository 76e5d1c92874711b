#include "cli/report_command.h"

#include <filesystem>
#include <memory>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include "core/base/atomic_file.h"
#include "profiler/analysis/analysis.h"
#include "profiler/report/html_report.h"
#include "profiler/trace/run.h"

#include "cli/analysis_flags.h"
#include "cli/output.h"

namespace shardlens::cli {
namespace {

struct ReportOptions {
  AnalysisFlags analysis;
  std::filesystem::path out;
};

ExitCode run(const ReportOptions& options) {
  analysis::AnalysisOptions settings = analysis_options(options.analysis.selection);
  settings.detail = analysis::Detail::kAll;
  const trace::Run opened = trace::Run::open(options.analysis.paths);
  const analysis::Analysis result = analysis::analyze(opened, settings);
  write_file_atomically(options.out, report::html_report(opened, result));
  return ExitCode::kOk;
}

}  // namespace

Action add_report_command(CLI::App& app) {
  auto options = std::make_shared<ReportOptions>();
  add_analysis_flags(app, options->analysis);
  app.add_option("--out", options->out, "the HTML file to write")->required();
  return [options] { return run(*options); };
}

}  // namespace shardlens::cli
