#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <nlohmann/json.hpp>

#include "core/base/standard_output.h"
#include "core/files/atomic_file.h"
#include "core/plan/plan.h"
#include "profiler/analysis/analysis.h"
#include "profiler/analysis/analyzed_run.h"
#include "profiler/report/figures_json.h"
#include "profiler/report/html_report.h"
#include "profiler/trace/run.h"
#include "sim/advise/advice_json.h"
#include "sim/scenario/prediction_json.h"
#include "sim/scenario/scenario.h"
#include "sim/scenario/uncertainty.h"

#include "cli/command/subcommand.h"
#include "cli/flags/analysis_flags.h"
#include "cli/flags/outputs.h"
#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

struct ReportOptions {
  AnalysisFlags analysis;
  bool simulate = false, advise = false;
  std::vector<std::filesystem::path> plans;
  Outputs outputs;
};

// Predictions for the run's own plan and each plan file, on the machine of the run, in the format
// of the page.
nlohmann::ordered_json simulated(const std::shared_ptr<const sim::RecordedRun>& recorded,
                                 const ReportOptions& options) {
  const sim::Scenario own = sim::own_scenario(recorded);
  const sim::Uncertainty uncertainty(recorded);
  auto versions = nlohmann::ordered_json::array();
  const auto add = [&](const std::string& title, const sim::Scenario& scenario) {
    nlohmann::ordered_json version{{"title", title}};
    sim::Prediction prediction = sim::evaluate(scenario, {.communication = true});
    uncertainty.add_to(scenario, prediction);
    version.update(sim::prediction_json(prediction));
    version["communication"] = report::communication_json(prediction.communication);
    versions.push_back(std::move(version));
  };
  add("as recorded", own);
  for (const std::filesystem::path& file : options.plans) {
    sim::Scenario scenario = own;
    scenario.plan = plan::load_plan(file);
    add(file.string(), scenario);
  }
  return versions;
}

ExitCode run(const ReportOptions& options) {
  const std::filesystem::path out = options.outputs.file("--out");
  analysis::AnalysisOptions settings = analysis_options(options.analysis.selection);
  settings.detail = analysis::DetailLevel::kAll;
  const auto analyzed = analysis::AnalyzedRun::open(options.analysis.paths);
  const trace::Run& opened = analyzed.run();
  // The simulator measures the run as it is, so timelines with other options are not shared.
  const bool shares = settings.timeline.communication == nullptr && !settings.timeline.device;
  const analysis::Analysis result =
      shares ? analysis::analyze(analyzed, settings) : analysis::analyze(opened, settings);
  report::HtmlOptions page;
  const bool simulates = options.simulate || !options.plans.empty();
  if (simulates || options.advise) {
    // With the arguments of events the page would have other sizes, so they are read apart.
    const auto recorded = sim::RecordedRun::needs_arguments(opened)
                              ? sim::RecordedRun::open(options.analysis.paths)
                              : sim::RecordedRun::of(analyzed);
    if (simulates) {
      page.simulated = simulated(recorded, options);
    }
    if (options.advise) {
      page.advice = sim::advice_json(sim::advise(recorded, result));
    }
  }
  write_file_atomically(out, report::html_report(opened, result, page));
  write_stderr("wrote {}\n", out.string());
  return ExitCode::kOk;
}

}  // namespace

Action add_report_command(CLI::App& app) {
  auto options = std::make_shared<ReportOptions>();
  add_analysis_flags(app, options->analysis);
  app.add_flag("--simulate", options->simulate,
               "also simulate the run's own plan on the machine of the run");
  app.add_flag("--advise", options->advise,
               "also list the changes of the run's plan that pay, as `shardlens advise` does");
  app.add_option("--plan", options->plans,
                 "also simulate this plan file on the machine of the run; may be repeated")
      ->option_text("FILE")
      ->allow_extra_args(false);
  options->outputs.add(app, "--out", "the HTML file to write")->required();
  return [options] { return run(*options); };
}

}  // namespace shardlens::cli
