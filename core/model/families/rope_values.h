#pragma once

#include "core/json/json_reader.h"
#include "core/model/model_config.h"

namespace shardlens::plan {

// The rotary embedding of llama: config.rope_…, also of types that the engine does not compute.
// Errors: InputError for types that transformers does not have.
void read_llama_rope(const JsonNode& root, ModelConfig& config);
// The same of the other families that are trained; `local_theta`: 0 if layers with a window have no
// rotary embedding of their own. Other types than the engine's are kept in config.rope_type, so
// that the model can be planned. Errors: InputError for values that cannot be.
void read_rope(const JsonNode& root, double theta, double local_theta, ModelConfig& config);

}  // namespace shardlens::plan
