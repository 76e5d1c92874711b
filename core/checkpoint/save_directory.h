#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint_index.h"

// A directory with the checkpoints of a run, one folder for each saved step:
//
//   step-00000010/       complete: checkpoint.json, rank00000.safetensors, …, config.json
//   step-00000020.tmp/   a save that has not ended, or was interrupted
//
// A folder gets its final name by one rename, after everything in it is on the disk. So a folder
// with a final name is complete.
namespace shardlens::checkpoint {

struct SavedStep {  // a complete checkpoint
  int64_t step = 0;
  std::filesystem::path path;
};

// The complete checkpoints, from the earliest on. None if the directory does not exist.
// Errors: RuntimeFault if the directory cannot be read.
[[nodiscard]] std::vector<SavedStep> saved_steps(const std::filesystem::path& root);
// Saves that were interrupted, or are being written now.
[[nodiscard]] std::vector<std::filesystem::path> unfinished_saves(
    const std::filesystem::path& root);

// The checkpoint that a path means: itself if it is one, otherwise the latest complete one in it;
// nullopt if it has none. Errors: RuntimeFault.
[[nodiscard]] std::optional<std::filesystem::path> latest_checkpoint(
    const std::filesystem::path& path);

// The folder of a save that begins; every rank calls this, then write_rank_part().
// Errors: RuntimeFault naming the path.
[[nodiscard]] std::filesystem::path begin_save(const std::filesystem::path& root, int64_t step);

// After all ranks have written their parts: merges them into the index, copies `extra` files (those
// that exist) into the folder, removes what an interrupted save has left in it, and gives it its
// final name, which is returned. One rank calls this.
// Errors: RuntimeFault; InputError for a part that is missing or cannot be read.
std::filesystem::path commit_save(const std::filesystem::path& root,
                                  const Position& position,
                                  const Origin& origin,
                                  std::span<const std::filesystem::path> extra);

// Writes the index of a folder whose ranks have written their parts, and removes these.
void write_index(const std::filesystem::path& folder,
                 const Position& position,
                 const Origin& origin);

// Removes all but the `keep` latest checkpoints, and interrupted saves. nullopt: keeps all.
// Errors: RuntimeFault.
void remove_old(const std::filesystem::path& root, std::optional<int64_t> keep);

}  // namespace shardlens::checkpoint
