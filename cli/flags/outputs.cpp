#include "cli/flags/outputs.h"

#include <algorithm>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/files/output_folder.h"
#include "core/files/own_files.h"

#include "cli/flags/option_values.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kForce = "--force";

// `flag`: "" if the path is not the value of one.
[[noreturn]] void refuse_output(std::string_view flag,
                                const fs::path& path,
                                const std::string& lost,
                                const std::string& instead) {
  throw UsageError(
      fmt::format("{}{}{}: {}; {}", flag, flag.empty() ? "" : " ", path.string(), lost, instead));
}

}  // namespace

CLI::Option* Outputs::add(CLI::App& app,
                          const std::string& flag,
                          const std::string& help,
                          Force force) {
  app_ = &app;
  CLI::Option* option = app.add_option(flag, paths_[flag], help)->group(std::string(kGroup));
  if (force == Force::kAllowed && app.get_option_no_throw(kForce) == nullptr) {
    app.add_flag(kForce, force_,
                 "write an output even in place of an input or of a file that is there");
  }
  return option;
}

void Outputs::also_reads(const std::string& flag, const fs::path& path) {
  more_.add(flag, path);
}

void Outputs::also_reads(const Inputs& inputs) {
  more_.add(inputs);
}

const fs::path& Outputs::named(std::string_view flag) const {
  const auto found = paths_.find(flag);
  SHARDLENS_CHECK(found != paths_.end(), fmt::format("{} is no flag of an output", flag));
  return found->second;
}

Inputs Outputs::inputs() const {
  Inputs out = more_;
  for (const CLI::Option* option : app_->get_options()) {
    const std::string name = option->get_positional() ? "" : option->get_name();
    if (may_be_path(*option) && !paths_.contains(name)) {
      for (const std::string& value : option->results()) {
        out.add(name, value);
      }
    }
  }
  return out;
}

void Outputs::refuse_two_of_one(std::string_view flag) const {
  const fs::path& path = named(flag);
  for (const auto& [other, other_path] : paths_) {
    if (other != flag && !other_path.empty() && same_output(path, other_path)) {
      refuse_output(flag, path, fmt::format("is also what {} writes", other),
                    "choose another path for one of them");
    }
  }
}

fs::path Outputs::file(std::string_view flag) const {
  const fs::path& path = named(flag);
  if (path.empty()) {
    return path;
  }
  refuse_two_of_one(flag);
  return file_in(flag, path.parent_path(), path.filename().string());
}

fs::path Outputs::file_in(std::string_view flag,
                          const fs::path& directory,
                          const std::string& name) const {
  fs::path path = directory / name;
  if (const std::string lost = inputs().lost_by_writing(path); !lost.empty() && !force_) {
    refuse_output(given(flag) ? flag : "", path, lost,
                  "choose another path, or add --force to write it all the same");
  }
  return path;
}

std::vector<fs::path> Outputs::new_files_in(std::string_view flag,
                                            const fs::path& directory,
                                            const std::vector<std::string>& names) const {
  std::vector<fs::path> paths;
  for (const std::string& name : names) {
    paths.push_back(file_in(flag, directory, name));
  }
  const OutputFolder folder = OutputFolder::make(directory);
  OwnFiles own(folder);
  for (const std::string& name : names) {
    if (!force_ && own.foreign(name)) {
      refuse_output(flag, directory,
                    fmt::format("has {}, which this program did not write there", name),
                    "choose another directory, or add --force to replace it");
    }
  }
  own.add(names);
  return paths;
}

fs::path Outputs::shared_directory(std::string_view flag) const {
  const fs::path& path = named(flag);
  if (!path.empty()) {
    refuse_two_of_one(flag);
  }
  return path;
}

fs::path Outputs::directory(std::string_view flag) const {
  const fs::path& path = named(flag);
  if (path.empty()) {
    return path;
  }
  refuse_two_of_one(flag);
  if (const std::string lost = inputs().lost_by_adding_to(path); !lost.empty() && !force_) {
    refuse_output(flag, path, lost,
                  "choose another directory, or add --force to write there all the same");
  }
  return path;
}

fs::path Outputs::emptied_directory(std::string_view flag) const {
  const fs::path& path = named(flag);
  if (path.empty()) {
    return path;
  }
  refuse_two_of_one(flag);
  if (const std::string lost = inputs().lost_by_emptying(path); !lost.empty()) {
    refuse_output(flag, path, lost, "choose another directory");
  }
  return path;
}

}  // namespace shardlens::cli
