#include <filesystem>
#include <memory>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "core/base/standard_output.h"
#include "profiler/check/baseline_file.h"
#include "profiler/check/compare.h"
#include "profiler/report/compare_report.h"

#include "cli/command/subcommand.h"
#include "cli/flags/analysis_flags.h"
#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

struct CompareOptions {
  std::filesystem::path a, b;
  SelectionFlags selection;
  bool json = false;
};

ExitCode run(const CompareOptions& options) {
  check::SummaryOptions items = summary_options(options.selection);
  items.items = true;
  const check::Comparison comparison =
      check::compare_runs(check::read_runs(options.a, items), check::read_runs(options.b, items));
  if (options.json) {
    write_data(report::compare_json(comparison));
  } else {
    write_stdout(report::compare_text(comparison, style_of_stdout()));
  }
  return ExitCode::kOk;
}

}  // namespace

Action add_compare_command(CLI::App& app) {
  auto options = std::make_shared<CompareOptions>();
  app.add_option("a", options->a, "a run, or a directory of several runs")->required();
  app.add_option("b", options->b, "the run, or runs, to compare it with")->required();
  add_selection_flags(app, options->selection);
  app.add_flag("--json", options->json, "machine-readable output, see shardlens docs metrics");
  return [options] { return run(*options); };
}

}  // namespace shardlens::cli
