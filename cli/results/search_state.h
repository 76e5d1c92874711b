#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>

#include "core/files/directory_lock.h"
#include "core/files/output_file.h"
#include "sim/search/search.h"

namespace shardlens::cli {

// A file with the predictions of a search, one per line, so that a stopped search can continue. The
// first line identifies the search.
class SearchState {
 public:
  // Reads the file if it exists. `identity`: JSON of everything that the outcomes depend on.
  // Errors: InputError if the file is of another search, or not a state file; RuntimeFault if it
  // cannot be written.
  SearchState(const std::filesystem::path& path, const std::string& identity);

  [[nodiscard]] const std::unordered_map<std::string, sim::Outcome>& known() const {
    return known_;
  }
  void add(const std::string& name, const sim::Outcome& outcome);

 private:
  std::unordered_map<std::string, sim::Outcome> known_;
  std::optional<OutputFile> file_;
};

// One search at a time adds to a file; two would mix their lines. None for a device, or no file.
[[nodiscard]] std::optional<DirectoryLock> lock_of_state(const std::filesystem::path& path);

}  // namespace shardlens::cli
