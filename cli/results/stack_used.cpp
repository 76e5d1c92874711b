#include "cli/results/stack_used.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/model/model_config.h"
#include "sim/hardware/stacks.h"

namespace shardlens::cli {

std::string StackUsed::text() const {
  return name + (program.empty() ? "" : " for " + program) +
         (gpu.empty() ? ""
          : by_name   ? fmt::format(", fitted to {}", gpu)
                      : fmt::format(", fitted to {}, the nearest GPU with published runs", gpu));
}

std::optional<StackUsed> stack_used(const RunOptions& run,
                                    const ScenarioOptions& options,
                                    const sim::Scenario& scenario) {
  const plan::ModelConfig* config = scenario.model->config();
  if (config == nullptr || !options.workload.empty() || !options.calibration.empty()) {
    return std::nullopt;
  }
  const std::string name = stack_name(run, options, *config);
  const bool pytorch = !plan::is_engine(scenario.step.program);
  const sim::Stack* stack = sim::chosen_stack(run.hardware, name, pytorch);
  if (stack == nullptr) {
    return std::nullopt;
  }
  const bool names_program = sim::program_of_stack(name).has_value();
  StackUsed out{.name = stack->name, .program = names_program ? name : ""};
  if (!sim::is_of(*stack, *scenario.machine->spec())) {
    out.gpu = stack->hardware.gpu.name;
    out.by_name = !name.empty() && !names_program;
  }
  return out;
}

nlohmann::ordered_json stack_json(const std::optional<StackUsed>& stack) {
  const auto text = [](const std::string& of) {
    return of.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(of);
  };
  const StackUsed used = stack.value_or(StackUsed());
  return {
      {"stack", text(used.name)}, {"program", text(used.program)}, {"stack_gpu", text(used.gpu)}};
}

}  // namespace shardlens::cli
