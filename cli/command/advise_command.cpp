#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/standard_output.h"
#include "core/files/atomic_file.h"
#include "core/json/json_dump.h"
#include "core/model/model_config.h"
#include "profiler/analysis/analysis.h"
#include "profiler/analysis/analyzed_run.h"
#include "sim/advise/advice_json.h"
#include "sim/advise/advise.h"
#include "sim/advise/mesh_proposal.h"

#include "cli/capture/measured_changes.h"
#include "cli/command/subcommand.h"
#include "cli/flags/outputs.h"
#include "cli/flags/scenario_options.h"
#include "cli/flags/size_option.h"
#include "cli/results/advice_text.h"
#include "cli/results/mesh_proposal_text.h"
#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

struct AdviseCommand {
  std::vector<fs::path> paths;
  fs::path model;        // empty: the run's own, if it has one
  std::string hardware;  // "": only what the run measured
  int64_t memory_limit = 0, top = 5, measure = 0;
  Outputs outputs;
  bool json = false;
};

void check(const AdviseCommand& options) {
  if (options.memory_limit < 0) {
    throw UsageError(fmt::format("--memory-limit {}: expected at least 1", options.memory_limit));
  }
  if (options.top < 1) {
    throw UsageError(fmt::format("--top: expected 1 or more, found {}", options.top));
  }
  if (options.measure < 0) {
    throw UsageError(fmt::format("--measure: expected 1 or more, found {}", options.measure));
  }
  if (options.measure > 0 && options.paths.size() != 1) {
    throw UsageError("--measure: expected one capture directory");
  }
}

void write_plans(const sim::Advice& advice, const Outputs& outputs, const fs::path& directory) {
  std::vector<std::string> names;
  for (size_t i = 0; i < advice.changes.size(); ++i) {
    names.push_back(fmt::format("change-{}.json", i + 1));
  }
  const std::vector<fs::path> files = outputs.new_files_in("--out", directory, names);
  for (size_t i = 0; i < files.size(); ++i) {
    write_file_atomically(files[i], plan::to_json(advice.changes[i].plan));
  }
}

ExitCode run(const AdviseCommand& options) {
  check(options);
  const fs::path out = options.outputs.directory("--out");
  sim::AdviseOptions settings;
  settings.memory_limit = options.memory_limit;
  settings.top = static_cast<size_t>(options.top);
  const analysis::AnalyzedRun opened = sim::RecordedRun::read(options.paths);
  const auto recorded = sim::RecordedRun::of(opened);
  write_recorder_notes(*recorded);
  sim::Advice advice = sim::advise(recorded, analysis::analyze(opened), settings);
  sim::MeshProposalOptions meshes;
  meshes.hardware = options.hardware;
  meshes.memory_limit = options.memory_limit;
  if (!options.model.empty()) {
    meshes.model = plan::load_model_config(options.model);
  }
  const sim::MeshProposal proposal = sim::propose_mesh(*recorded, meshes);
  if (options.measure > 0) {
    measure_changes(options.paths.front(), opened.run(), static_cast<size_t>(options.measure),
                    advice);
  }
  if (!out.empty()) {
    write_plans(advice, options.outputs, out);
  }
  if (options.json) {
    nlohmann::ordered_json json = sim::advice_json(advice);
    json["mesh"] = sim::mesh_proposal_json(proposal);
    write_data(plan::json_text(json, 1) + "\n");
  } else {
    write_stdout(advice_text(advice, opened.run().source, style_of_stdout()));
    write_stdout(mesh_proposal_text(proposal));
  }
  return advice.is_uncertain() ? ExitCode::kInconclusive : ExitCode::kOk;
}

}  // namespace

Action add_advise_command(CLI::App& app) {
  const auto options = std::make_shared<AdviseCommand>();
  app.add_option("paths", options->paths,
                 "a capture directory, a run of shardlens.record, or traces of PyTorch's FSDP or "
                 "DDP; one run")
      ->required();
  app.add_option(
         "--model", options->model,
         "the model of a run that does not contain it, to propose another mesh: a directory "
         "with config.json, a config.json or a model.json")
      ->option_text("PATH [the run's]");
  app.add_option(
         "--hardware", options->hardware,
         "what prices the parts of other meshes that the run did not measure: the name of a "
         "spec, or a file")
      ->option_text("SPEC");
  app.add_option("--memory-limit", options->memory_limit,
                 "limit on the memory that the allocator reserves per rank, such as "
                 "80GiB [the machine's, if it is known]")
      ->transform(CLI::Validator(size_to_bytes, ""))
      ->option_text("SIZE");
  app.add_option("--top", options->top, "list at most N changes")->capture_default_str();
  app.add_option("--measure", options->measure,
                 "capture the run's own plan and the first K changes again, alternately, and show "
                 "the measured change; only for captures")
      ->option_text("K");
  options->outputs
      .add(app, "--out", "write the changes' plans to DIR/change-1.json, change-2.json, …")
      ->option_text("DIR");
  app.add_flag("--json", options->json, "machine-readable output, see shardlens docs cli");
  return [options] { return run(*options); };
}

}  // namespace shardlens::cli
