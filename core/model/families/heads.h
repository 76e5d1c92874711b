#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/json/json_reader.h"
#include "core/model/model_config.h"
#include "core/tree/tree_builder.h"
#include "core/workload/workload_builder.h"

namespace shardlens::plan {

// Heads of language models. The class in "architectures" says which one a checkpoint has.

// Sets config.head, torch_type, base_name and labels; config.torch_type is the family's causal
// model before. Without "architectures" the head is kCausal.
// Errors: InputError for a class that is not known to be of the family.
void read_head(const JsonNode& root, ModelConfig& config);

// Number of classes: of "id2label", else "num_labels", else 2.
[[nodiscard]] int64_t labels_of(const JsonNode& root);

// The base's name below the root, where the family calls it `name`; "": the base is the model.
[[nodiscard]] std::string base_name(const ModelConfig& config, std::string_view name);

// Adds the head's modules to a tree, and its operators to a forward. `features`: of its input;
// `embedding`: the index of the embedding's weight, which a causal head may share.
void add_head(TreeBuilder& build, const ModelConfig& config, int64_t features, uint32_t embedding);
void head_forward(WorkloadBuilder& build, const ModelConfig& config, int64_t features);

// Numbers in the head's output for each token; 0: there is no head, and so no loss.
[[nodiscard]] int64_t outputs_of_head(const ModelConfig& config);

}  // namespace shardlens::plan
