#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flags/inputs.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace shardlens::cli {

// The outputs of a subcommand, as its flags name them. A command gets the path of an output only
// from here, and so only after it was compared with everything that the command reads: the values
// of all its other flags and arguments that may be paths.
//
// Errors  UsageError if an input, or another output, would be lost.
class Outputs {
 public:
  // CLI11's group of the flags that add() declares.
  static constexpr std::string_view kGroup = "output";

  enum class Force {
    kAllowed,
    kNever,  // the directory is emptied, or there are no inputs
  };
  // Declares a flag whose value is the path of an output, and --force, which allows to write in
  // place of an input and to replace files that the user did not name.
  CLI::Option* add(CLI::App& app,
                   const std::string& flag,
                   const std::string& help,
                   Force force = Force::kAllowed);
  // Something that the command reads and that is no value of a flag.
  void also_reads(const std::string& flag, const std::filesystem::path& path);
  void also_reads(const Inputs& inputs);

  [[nodiscard]] bool given(std::string_view flag) const { return !named(flag).empty(); }
  // The path as it was given, for messages.
  [[nodiscard]] std::string shown(std::string_view flag) const { return named(flag).string(); }

  // Each returns the path of the flag, "" without it.
  //
  // One file.
  [[nodiscard]] std::filesystem::path file(std::string_view flag) const;
  // A directory to which files are added; new_files_in() gives their paths.
  [[nodiscard]] std::filesystem::path directory(std::string_view flag) const;
  // The same for files whose names no input has, so that the directory may be one that is read.
  [[nodiscard]] std::filesystem::path shared_directory(std::string_view flag) const;
  // A directory that is emptied.
  [[nodiscard]] std::filesystem::path emptied_directory(std::string_view flag) const;
  // A file in a directory of the flag, or wherever else the command puts it.
  [[nodiscard]] std::filesystem::path file_in(std::string_view flag,
                                              const std::filesystem::path& directory,
                                              const std::string& name) const;
  // Files in a directory of the flag, which is made. Without --force, a file of such a name is
  // replaced only if this program wrote it: whoever names a directory may not know which files of
  // it the command replaces.
  [[nodiscard]] std::vector<std::filesystem::path> new_files_in(
      std::string_view flag,
      const std::filesystem::path& directory,
      const std::vector<std::string>& names) const;

 private:
  [[nodiscard]] const std::filesystem::path& named(std::string_view flag) const;
  [[nodiscard]] Inputs inputs() const;
  void refuse_two_of_one(std::string_view flag) const;

  const CLI::App* app_ = nullptr;
  std::map<std::string, std::filesystem::path, std::less<>> paths_;  // by flag
  Inputs more_;
  bool force_ = false;
};

}  // namespace shardlens::cli
