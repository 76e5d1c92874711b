#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <sys/stat.h>

#include "core/files/descriptor.h"
#include "core/files/output_file.h"

namespace shardlens {

// A file that is written under a temporary name. commit() puts it on the disk and renames it to its
// final name, so that a reader never sees half a file, and a machine that fails leaves the old file
// or the new one. Without commit() the temporary file is removed. A file that is replaced passes
// its permissions on.
//
// If the path is a symlink, the link stays and its target is written, whether or not the target
// exists yet. Devices, FIFOs and the process's own descriptors (/dev/stdout, /dev/fd/63) cannot be
// replaced: the bytes are written to them directly.
//
// Errors  RuntimeFault naming the path and the system's reason.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(std::string_view bytes);
  void commit();

 private:
  void flush();

  std::filesystem::path path_;  // as passed in, for messages
  std::string name_;            // the final one
  std::optional<struct stat> replaced_;
  std::optional<OutputFile> file_;  // none: the bytes are written directly
  Descriptor direct_;
  std::string buffer_;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view content);

}  // namespace shardlens
