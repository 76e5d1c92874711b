#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "core/checkpoint/companion_files.h"
#include "core/model/model_config.h"
#include "core/tree/module_tree.h"

namespace shardlens::fsdp {
class ShardedModel;
}

namespace shardlens::train {

// Fills this rank's slices from `path` (a directory with safetensors, or one file). Reads only the
// pages with these slices. A tensor is looked up by the parameter's name, by its tied names, and by
// each of them without the base model's prefix ("transformer.", "model."), as transformers does for
// checkpoints of the base model; experts may have tensors of their own. Errors: InputError naming
// file, tensor, and the shape found and expected.
void load_parameters(fsdp::ShardedModel& model,
                     const plan::ModelConfig& config,
                     const std::filesystem::path& path);

// Fills this rank's slices with the initial values of a new model, which do not depend on the world
// size.
void initialize_parameters(fsdp::ShardedModel& model,
                           const plan::ModelConfig& config,
                           uint64_t seed);

// Writes `directory`/model.safetensors in fp32, with a tensor or two for each expert, and
// `companions`: the files that transformers' from_pretrained reads. A collective: every rank must
// call it; rank 0 writes, with one unsharded parameter in memory at a time. Errors: RuntimeFault
// naming the path and the system's reason.
void save_checkpoint(fsdp::ShardedModel& model,
                     const plan::ModelConfig& config,
                     std::span<const checkpoint::CompanionFile> companions,
                     const std::filesystem::path& directory,
                     int rank);

}  // namespace shardlens::train
