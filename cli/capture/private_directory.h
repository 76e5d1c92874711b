#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/files/descriptor.h"
#include "core/files/output_file.h"
#include "core/files/output_folder.h"

namespace shardlens::cli {

// A directory for temporary files that only this user can access, removed by the destructor. Its
// name has a random identifier, and so has a mark in it, which is locked while its process lives.
// When the next one is created, those of this user with such a mark, but without a lock, are
// removed: their process was killed. Other directories stay, whatever their names.
//
// Errors  RuntimeFault if no directory can be created.
class PrivateDirectory {
 public:
  static constexpr const char* kPrefix = "shardlens-run-";
  static constexpr const char* kMark = "shardlens-private";

  PrivateDirectory();
  ~PrivateDirectory();
  PrivateDirectory(const PrivateDirectory&) = delete;
  PrivateDirectory& operator=(const PrivateDirectory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return folder_->path(); }

 private:
  void create(const std::string& identifier);

  OutputFolder below_;  // the one for temporary files of all programs
  std::string name_;
  std::optional<OutputFolder> folder_;
  std::optional<OutputFile> mark_;
  Descriptor reserve_;  // so that the destructor can list the directory when no other is left
};

}  // namespace shardlens::cli
