#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <unordered_map>

#include "sim/search/search.h"

namespace shardlens::cli {

// What a search has predicted so far, a line each, so that it can go on after it was stopped. The
// first line says which search it is of.
class SearchState {
 public:
  // Reads what is there; `identity` is JSON of all that the outcomes depend on.
  // Errors: InputError if the file is of another search, or no such file; RuntimeFault if it cannot
  // be written.
  SearchState(const std::filesystem::path& path, const std::string& identity);

  [[nodiscard]] const std::unordered_map<std::string, sim::Outcome>& known() const {
    return known_;
  }
  void add(const std::string& name, const sim::Outcome& outcome);

 private:
  std::filesystem::path path_;
  std::unordered_map<std::string, sim::Outcome> known_;
  std::ofstream out_;
};

}  // namespace shardlens::cli
