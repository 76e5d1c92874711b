#include "cli/flags/analysis_flags.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <re2/re2.h>

#include "core/base/error.h"
#include "core/base/shown.h"

#include "cli/flags/step_range.h"

namespace shardlens::cli {

void add_selection_flags(CLI::App& app, SelectionFlags& flags) {
  app.add_option("--steps", flags.steps, "A:B: only steps A to B - 1");
  app.add_option("--comm-regex", flags.comm_regex,
                 "regular expression: kernels and operators with such names count as communication "
                 "too");
  app.add_option("--device", flags.device,
                 "of a process that ran kernels on several devices: the device to analyze")
      ->option_text("N");
}

void add_analysis_flags(CLI::App& app, AnalysisFlags& flags) {
  app.add_option("paths", flags.paths,
                 "capture directories, traces (.json, .json.gz, .json.zst) or spools; one run")
      ->required();
  add_selection_flags(app, flags.selection);
}

analysis::AnalysisOptions analysis_options(const SelectionFlags& flags) {
  analysis::AnalysisOptions options;
  if (!flags.steps.empty()) {
    options.steps = parse_step_range(flags.steps);
  }
  if (!flags.comm_regex.empty()) {
    re2::RE2::Options syntax;
    syntax.set_log_errors(false);
    auto names = std::make_shared<const re2::RE2>(flags.comm_regex, syntax);
    if (!names->ok()) {
      throw UsageError(fmt::format("--comm-regex: '{}' is not a regular expression: {}",
                                   elided(flags.comm_regex, 60), elided(names->error(), 120)));
    }
    options.timeline.communication = std::move(names);
  }
  if (flags.device.value_or(0) < 0) {
    throw UsageError(
        fmt::format("--device {}: expected a device's number, 0 or more", *flags.device));
  }
  options.timeline.device = flags.device;
  return options;
}

check::SummaryOptions summary_options(const SelectionFlags& flags) {
  const analysis::AnalysisOptions options = analysis_options(flags);
  return {.timeline = options.timeline, .steps = options.steps};
}

}  // namespace shardlens::cli
