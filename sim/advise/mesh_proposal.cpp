#include "sim/advise/mesh_proposal.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/model/model_file.h"
#include "core/plan/plan_mesh_json.h"
#include "sim/scenario/model_of_run.h"
#include "sim/scenario/uncertainty.h"
#include "sim/search/search.h"

namespace shardlens::sim {
namespace {

PricedMesh priced(const Scenario& scenario, const Uncertainty& uncertainty) {
  Prediction prediction = evaluate(scenario);
  uncertainty.add_to(scenario, prediction);
  return {.mesh = plan::sizes_of(*prediction.priced.plan),
          .title = {},
          .plan = scenario.plan,
          .step = scenario.step,
          .duration = prediction.step.duration,
          .interval = prediction.interval,
          .peak_reserved = prediction.memory.peak_reserved};
}

// The fastest plan on another mesh than `own`; counts the meshes.
const Found* best_of_others(const SearchResult& result,
                            const plan::MeshSizes& own,
                            MeshProposal& out) {
  const Found* best = nullptr;
  for (const MeshResult& each : result.meshes) {
    if (each.mesh == own) {
      continue;
    }
    if (each.end == MeshEnd::kRefused) {
      ++out.refused;
      out.why_refused = out.why_refused.empty() ? each.refusal : out.why_refused;
      continue;
    }
    ++out.searched;
    if (each.best && (best == nullptr ||
                      each.best->outcome.figures.duration() < best->outcome.figures.duration())) {
      best = &*each.best;
    }
  }
  return best;
}

void search_meshes(const Scenario& own, const MeshProposalOptions& options, MeshProposal& out) {
  const Uncertainty uncertainty(own.machine);
  out.own = priced(own, uncertainty);
  SearchOptions search_options;
  search_options.memory_limit = options.memory_limit;
  search_options.threads = options.threads;
  search_options.cancelled = options.cancelled;
  search_options.meshes = MeshSpace::all();
  const SearchResult result = search(own, search_options);
  out.not_tried = result.not_tried;
  const Found* best = best_of_others(result, out.own->mesh, out);
  if (best == nullptr) {
    out.refusal = out.searched == 0 ? "no other mesh could be priced: " + out.why_refused
                                    : "no plan of another mesh fits";
    return;
  }
  out.best = priced(scenario_of(best->candidate, own), uncertainty);
  out.best->title = name_of(best->candidate, own.world_size);
}

}  // namespace

MeshProposal propose_mesh(const RecordedRun& run, const MeshProposalOptions& options) {
  MeshProposal out;
  out.machine = run.machine()->target().name;
  try {
    const std::optional<plan::ModelConfig> config = options.model ? options.model : own_model(run);
    if (!config) {
      out.refusal =
          "the run does not contain its model, and its operators are those of its own mesh; give "
          "the model with --model to search other meshes";
      return out;
    }
    if (config->file != nullptr && config->file->steps.empty()) {
      out.refusal = fmt::format(
          "{} has no operators of the model; give its config.json, or a model.json that "
          "shardlens.export made",
          config->source);
      return out;
    }
    const Scenario own = scenario_of_model(run, *config, options.hardware);
    out.machine = own.machine->target().name;
    search_meshes(own, options, out);
  } catch (const InputError& error) {
    out.refusal = error.what();
  }
  return out;
}

}  // namespace shardlens::sim
