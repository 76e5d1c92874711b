#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace shardlens::cli {

// The files that a command reads, as its flags name them, and which of them would be lost if a path
// were written.
//
// Files and directories are compared by device and inode, so through symlinks and hard links, and
// an output that does not exist yet by its directory and name. A directory counts with the files
// in it that are read: traces, plans and the other files of a run; config.json and safetensors of a
// model; those of a checkpoint.
class Inputs {
 public:
  // `flag`: the flag that names the path; "": an argument without one. A path where nothing is, or
  // that is a device or a FIFO, is no input.
  void add(const std::string& flag, const std::filesystem::path& path);
  void add(const Inputs& others);

  // Each returns what would be lost, to follow the output's name in a message; "": nothing.
  //
  // By writing this file. Devices, FIFOs and what they lead to are never lost.
  [[nodiscard]] std::string lost_by_writing(const std::filesystem::path& file) const;
  // By adding files with names of ours to this directory.
  [[nodiscard]] std::string lost_by_adding_to(const std::filesystem::path& directory) const;
  // By replacing everything in this directory.
  [[nodiscard]] std::string lost_by_emptying(const std::filesystem::path& directory) const;

 private:
  struct Input {
    std::string reader;  // "--plan", "this command"
    std::filesystem::path path;
    bool is_directory = false;
  };
  std::vector<Input> inputs_;
};

// Whether two outputs would be one file or directory. Devices and FIFOs may be written twice.
[[nodiscard]] bool same_output(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace shardlens::cli
