#pragma once

#include <span>
#include <string_view>

#include "core/plan/json_reader.h"
#include "core/plan/module_tree.h"
#include "core/plan/workload_builder.h"

namespace shardlens::plan {

// A family of models that share their modules: how its config.json is read, which modules it has
// and what its forward runs. Each family is one file; model_families() lists them.
struct ModelFamily {
  std::string_view model_type;  // of config.json
  // Sets the fields of `config` that the family uses. Errors: InputError naming the key.
  void (*read)(const JsonNode& root, ModelConfig& config);
  ModuleTree (*tree)(const ModelConfig& config);
  // The operators of a forward, module by module, within the root.
  void (*forward)(WorkloadBuilder& build, const ModelConfig& config);
};

[[nodiscard]] std::span<const ModelFamily* const> model_families();
// The row of config.family. Errors: RuntimeFault where there is none.
[[nodiscard]] const ModelFamily& family_of(const ModelConfig& config);

}  // namespace shardlens::plan
