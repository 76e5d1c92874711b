#pragma once

#include <filesystem>
#include <string>

#include "core/files/directory_lock.h"

namespace shardlens::cli {

// A directory that a capture is written to, locked as long as this exists. Its mark is a file with
// an identifier, which run.json has too, as "capture". Only files of a directory with both are
// replaced by the next capture: names of files do not say who made them.
struct CaptureDirectory {
  static constexpr const char* kMark = ".shardlens-capture";

  DirectoryLock lock;
  std::string identifier;  // for run.json
};

// Creates `directory`, or empties it if it contains only an earlier capture, and marks it. `force`:
// the earlier capture may have no mark, as those of older versions. Even then, what is not a
// regular file with a name of a capture's stays.
// Errors: UsageError if the directory contains anything else or has no mark (naming what would be
// lost), if it cannot be created, or if another process is writing a capture there (naming the
// process).
[[nodiscard]] CaptureDirectory prepare_capture_directory(const std::filesystem::path& directory,
                                                         bool force);

// Throws the errors of prepare_capture_directory(), but changes nothing.
void check_capture_directory(const std::filesystem::path& directory, bool force);

// The same for ranks that something else starts, each by itself: makes the directory, and marks it
// if no other rank has. What is in it stays; with the mark, each rank replaces its files.
void share_capture_directory(const std::filesystem::path& directory, bool force);

// The text of a model's config, to be copied into a run so that the run can be moved. "" without
// one, and, with a note on stderr, for a link that leads out of the model's directory: runs are
// given to others, and whoever made the link must not choose which file of this user goes along.
// Errors: InputError.
[[nodiscard]] std::string copied_config(const std::filesystem::path& config);

// Removes what only a running capture needs: the files with what each rank was doing, files that
// they had not finished, and the spools of ranks that recorded nothing, because they never trained
// or the file system was full from the start. Returns the names of the other spools, which a failed
// capture leaves, separated by ", ".
[[nodiscard]] std::string tidy_capture_directory(const std::filesystem::path& directory,
                                                 int first_rank,
                                                 int processes);

}  // namespace shardlens::cli
