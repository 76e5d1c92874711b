#pragma once

#include <filesystem>
#include <string>

#include "core/base/directory_lock.h"

namespace shardlens::cli {

// Creates `directory`, or empties it if it contains only an earlier capture. It is locked for the
// caller as long as the lock exists.
// Errors: UsageError if the directory contains a file that is no part of a capture (naming it), if
// it cannot be created, or if another process is writing a capture there (naming the process).
[[nodiscard]] DirectoryLock prepare_capture_directory(const std::filesystem::path& directory);

// Throws the errors of prepare_capture_directory(), but changes nothing.
void check_capture_directory(const std::filesystem::path& directory);

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
