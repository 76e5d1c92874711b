#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/companion_files.h"
#include "core/files/directory_lock.h"
#include "core/files/output_folder.h"

// A directory with the checkpoints of a run, one folder for each saved step:
//
//   step-00000010/          complete: checkpoint.json, rank00000.safetensors, …, config.json
//   step-00000020.tmp<id>/  a save that has not ended, or was interrupted; <id> is the run's
//   save.lock               while a run saves here
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
// Saves that were interrupted, or are being written now. Errors: RuntimeFault.
[[nodiscard]] std::vector<std::filesystem::path> unfinished_saves(
    const std::filesystem::path& root);
// What is in the way of later saves: entries with the final name of a step after `step` that are no
// directories. Errors: RuntimeFault.
[[nodiscard]] std::vector<std::filesystem::path> obstacles_after(const std::filesystem::path& root,
                                                                 int64_t step);

// The checkpoint that a path means: itself if it is one, otherwise the latest complete one in it;
// nullopt if it has none. Errors: RuntimeFault.
[[nodiscard]] std::optional<std::filesystem::path> latest_checkpoint(
    const std::filesystem::path& path);

// The lock of a directory to which one run at a time saves. Messages begin with `flag`.
[[nodiscard]] LockedPlace save_place(const std::filesystem::path& root,
                                     std::string_view flag = "--save");

// The directory that a run saves to, on one of its ranks. It is held open: if its path is given to
// another directory meanwhile, the run still saves to this one.
//
// Errors  WriteFault naming the path.
class SaveDirectory {
 public:
  // `root` is made if it does not exist. `run`: random_identifier(), the same on all ranks.
  SaveDirectory(const std::filesystem::path& root, std::string run);

  // Before the first save: finds out whether this rank can write what the others read. Rank 0 calls
  // it first, and end_trial() after all ranks have called it.
  void try_writing(int64_t rank) const;
  void end_trial() const noexcept;

  // The folder of a save that begins; every rank calls this, then write_rank_part().
  [[nodiscard]] OutputFolder begin(int64_t step) const;
  // After all ranks have written their parts: merges them into the index, adds `extra` files, and
  // gives the folder its final name, which is returned. A checkpoint of this step that is there is
  // replaced. One rank calls this.
  // Errors: InputError for a part that is missing or cannot be read.
  std::filesystem::path commit(const Position& position,
                               const Origin& origin,
                               std::span<const CompanionFile> extra) const;
  // Removes all but the `keep` latest checkpoints; nullopt: keeps all. Returns a message for each
  // that stays because it is a symlink or has other files. One rank calls this.
  [[nodiscard]] std::vector<std::string> remove_old(std::optional<int64_t> keep) const;
  // Removes what earlier runs have left of interrupted saves; the caller has the lock. Returns a
  // message for each folder that stays because it has no marker or has other files.
  [[nodiscard]] std::vector<std::string> remove_interrupted() const;

 private:
  OutputFolder root_;
  std::string run_;
};

// Writes the index of a folder whose ranks have written their parts, and removes these.
// Errors: as commit().
void write_index(const OutputFolder& folder, const Position& position, const Origin& origin);

}  // namespace shardlens::checkpoint
