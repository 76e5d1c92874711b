#include "profiler/trace/program_files.h"

#include <algorithm>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "core/json/json_values.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/tree/module_tree.h"
#include "profiler/trace/parallel_axes.h"

namespace shardlens::trace {
namespace {

// A positive number, or nullopt: the recorder writes null for what it could not find out.
std::optional<int64_t> positive(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  const auto value = found == object.end() ? std::nullopt : plan::integer_of(*found);
  return value && *value >= 1 ? value : std::nullopt;
}

plan::StepSettings settings_of(const nlohmann::json& environment) {
  plan::StepSettings out;
  const auto written = environment.find("step_settings");
  if (written == environment.end() || !written->is_object()) {
    return out;
  }
  out.batch = positive(*written, "batch").value_or(out.batch);
  out.seq = positive(*written, "seq");
  out.accumulate = positive(*written, "accumulate").value_or(out.accumulate);
  if (const auto sync = written->find("sync_every_microbatch");
      sync != written->end() && sync->is_boolean()) {
    out.sync_every_microbatch = sync->get<bool>();
  }
  if (const auto name = written->find("optimizer");
      name != written->end() && name->is_string() &&
      name->get<std::string>() == plan::name_of(plan::Optimizer::kSgd)) {
    out.optimizer = plan::Optimizer::kSgd;
    const auto momentum = written->find("momentum");
    out.momentum =
        momentum != written->end() && momentum->is_number() ? momentum->get<double>() : 0;
  }
  return out;
}

}  // namespace

PlannedInputs read_recorded_program(const std::filesystem::path& directory,
                                    const nlohmann::json& environment,
                                    const Metadata& metadata) {
  PlannedInputs out;
  const int64_t world_size =
      positive(environment, "world_size").value_or(metadata.world_size.value_or(1));
  out.config = plan::load_model_config(directory / "model.json");
  plan::Plan plan = plan::load_plan(directory / "plan.json");
  add_tensor_axis(plan, metadata.groups, environment.dump());
  out.plan = plan::resolve(plan, plan::module_tree(*out.config),
                           ranks_of_plan(world_size, model_axes(metadata.groups)));
  out.settings = settings_of(environment);
  plan::require_valid(out.settings, (directory / "run.json").string());
  return out;
}

}  // namespace shardlens::trace
