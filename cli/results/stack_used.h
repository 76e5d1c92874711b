#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "cli/flags/scenario_options.h"

namespace shardlens::cli {

// The stack of a model's figures on a spec: which constants, for which program.
struct StackUsed {
  std::string name;
  std::string program;   // the value of --stack that names a program; "": this engine's operators
  std::string gpu;       // the GPU that it was fitted to, if that is another one than the spec's
  bool by_name = false;  // then: --stack named it, so that it need not be the nearest

  // Name and program, and what is known of another GPU.
  [[nodiscard]] std::string text() const;
};

// The stack whose constants scenario_of() took. nullopt: those of the bare hardware or of a spec
// file, or the machine was measured. Errors: InputError for an unknown name.
[[nodiscard]] std::optional<StackUsed> stack_used(const RunOptions& run,
                                                  const ScenarioOptions& options,
                                                  const sim::Scenario& scenario);

// The keys `stack`, `program` and `stack_gpu` of --json, each null if there is none.
[[nodiscard]] nlohmann::ordered_json stack_json(const std::optional<StackUsed>& stack);

}  // namespace shardlens::cli
