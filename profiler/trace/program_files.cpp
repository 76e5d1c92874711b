#include "profiler/trace/program_files.h"

#include <algorithm>
#include <cstdint>
#include <map>
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

constexpr int64_t kMostStates = int64_t{1} << 50;  // bytes or elements of a row

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
  if (const auto segments = written->find("expandable_segments");
      segments != written->end() && segments->is_boolean()) {
    out.software.expandable_segments = segments->get<bool>();
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

// What the optimizer keeps for an element of each parameter: of rank 0's part of it. For a
// parameter of which rank 0 has nothing, what it keeps for all others.
void add_states(const nlohmann::json& environment, plan::ModuleTree& tree) {
  const auto rows = environment.find("optimizer_states");
  if (rows == environment.end() || !rows->is_array()) {
    return;
  }
  std::map<std::string, std::optional<double>> of_element;
  double all_bytes = 0, all_elements = 0;
  for (const nlohmann::json& row : *rows) {
    const auto number = [&row](const char* key) -> std::optional<double> {
      const auto found = row.find(key);
      const auto value = found == row.end() ? std::nullopt : plan::integer_of(*found);
      return value && *value >= 0 ? std::optional(static_cast<double>(*value)) : std::nullopt;
    };
    const auto names = row.is_object() ? row.find("parameters") : row.end();
    const auto bytes = number("bytes"), elements = number("elements");
    if (!row.is_object() || names == row.end() || !names->is_array() || !bytes || !elements ||
        *bytes > static_cast<double>(kMostStates) || *elements > static_cast<double>(kMostStates)) {
      return;
    }
    all_bytes += *bytes;
    all_elements += *elements;
    for (const nlohmann::json& name : *names) {
      if (name.is_string()) {
        of_element[name.get<std::string>()] =
            *elements > 0 ? std::optional(*bytes / *elements) : std::nullopt;
      }
    }
  }
  const double others = all_elements > 0 ? all_bytes / all_elements : 0;
  for (plan::Parameter& each : tree.parameters) {
    if (each.requires_grad) {
      const auto found = of_element.find(each.fqn);
      each.state_bytes = found == of_element.end() ? 0 : found->second.value_or(others);
    }
  }
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
  plan::ModuleTree tree = plan::module_tree(*out.config);
  add_states(environment, tree);
  out.plan = plan::resolve(plan, tree, ranks_of_plan(world_size, model_axes(metadata.groups)));
  out.settings = settings_of(environment);
  plan::require_valid(out.settings, (directory / "run.json").string());
  return out;
}

}  // namespace shardlens::trace
