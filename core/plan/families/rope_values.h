#pragma once

#include "core/plan/json_reader.h"
#include "core/plan/module_tree.h"

namespace shardlens::plan {

// The rotary embedding of a family that is trained: config.rope_…. Errors: InputError for types
// that the engine does not compute.
void read_llama_rope(const JsonNode& root, ModelConfig& config);

}  // namespace shardlens::plan
