#include "cli/flags/given_plan.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "core/model/model_config.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/tree/module_tree.h"
#include "profiler/trace/parallel_axes.h"
#include "profiler/trace/sharded_parameters.h"

namespace shardlens::cli {

void GivenPlan::give(trace::Run& run) const {
  if (model.empty()) {
    return;
  }
  const trace::Metadata& first = run.traces.front().metadata;
  const int64_t ranks =
      first.world_size.value_or(std::max<int64_t>(1, static_cast<int64_t>(run.traces.size())));
  trace::PlannedInputs inputs;
  inputs.config = plan::load_model_config(model);
  inputs.plan = plan::resolve(plan::load_plan(plan), plan::module_tree(*inputs.config),
                              trace::ranks_of_plan(ranks, trace::model_axes(first.groups)));
  // The given plan replaces the recorded one, so a message about the latter is dropped.
  std::erase_if(run.diagnostics, [&run](const trace::Diagnostic& each) {
    return !run.plan_problem.empty() && each.message.ends_with(run.plan_problem);
  });
  for (trace::Trace& each : run.traces) {
    each.sharded_parameters = trace::sharded_parameters_of_plan(inputs.plan);
  }
  run.program = std::move(inputs);
  run.planned.reset();
  run.plan_problem.clear();
}

void add_given_plan(CLI::App& app, GivenPlan& flags) {
  CLI::Option* model =
      app.add_option("--model", flags.model,
                     "of traces that came without their plan: directory with config.json, a "
                     "config.json or a model.json");
  CLI::Option* plan =
      app.add_option("--plan", flags.plan, "the plan file that the traces ran with, for --model");
  model->needs(plan)->option_text("MODEL");
  plan->needs(model)->option_text("FILE");
}

}  // namespace shardlens::cli
