#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/json/json_reader.h"
#include "core/model/model_config.h"
#include "core/workload/workload_builder.h"

namespace shardlens::plan {

// A family of models that share their modules: how its config.json is read, which modules it has
// and what its forward runs. model_families() lists them: the rows of decoder_families(), and those
// that have a file of their own.
struct ModelFamily {
  std::string_view model_type;  // of config.json
  // Sets the fields of `config` that the family uses. Errors: InputError naming the key.
  void (*read)(const JsonNode& root, ModelConfig& config);
  ModuleTree (*tree)(const ModelConfig& config);
  // The operators of a forward, module by module, within the root.
  void (*forward)(WorkloadBuilder& build, const ModelConfig& config);
};

[[nodiscard]] std::span<const ModelFamily> model_families();
// The row of config.family. Errors: RuntimeFault where there is none.
[[nodiscard]] const ModelFamily& family_of(const ModelConfig& config);
// Why torchtitan's programs cannot run the model; "": they can.
[[nodiscard]] std::string torchtitan_refusal(const ModelConfig& config);

}  // namespace shardlens::plan
