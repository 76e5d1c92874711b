#pragma once

#include <cstdint>
#include <filesystem>

#include "core/plan/module_tree.h"

namespace shardlens::fsdp {
class ShardedModel;
}

namespace shardlens::train {

// Fills this rank's slices from `path` (a directory with safetensors, or one file), reading only
// the pages they lie on. A tensor is looked up by the parameter's name, its tied names, and both
// without the base model's prefix ("transformer.", "model."), as transformers does for checkpoints
// of the base model. Errors: InputError naming file, tensor, and the shape seen and expected.
void load_parameters(fsdp::ShardedModel& model, const std::filesystem::path& path);

// Fills this rank's slices with a fresh model's values: the same model for every world size.
void initialize_parameters(fsdp::ShardedModel& model,
                           const plan::ModelConfig& config,
                           uint64_t seed);

// Writes `directory`/model.safetensors in fp32 and copies config.json (and generation_config.json)
// from beside `config.source`: what transformers' from_pretrained reads. A collective: every rank
// calls it, rank 0 writes, with one whole parameter in memory at a time. Errors: RuntimeFault
// naming the path and the system's reason.
void save_checkpoint(fsdp::ShardedModel& model,
                     const plan::ModelConfig& config,
                     const std::filesystem::path& directory,
                     int rank);

}  // namespace shardlens::train
