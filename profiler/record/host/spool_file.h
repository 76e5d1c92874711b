#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "core/files/descriptor.h"
#include "core/files/output_folder.h"
#include "profiler/trace/spool/spool_format.h"

namespace shardlens::record {

// The file of a spool: appends batches of whole records. It is locked for as long as the object
// lives, since two processes of one rank would mix their records.
// Threads  not thread-safe; the caller serialises.
// Errors   the constructor throws RuntimeFault naming the path and reason, also if another process
//          has the file; append() and keep_newest() never throw.
class SpoolFile {
 public:
  SpoolFile(const std::filesystem::path& path, int rank, int world_size);
  SpoolFile(const SpoolFile&) = delete;
  SpoolFile& operator=(const SpoolFile&) = delete;

  // Fills in each record's check and writes the records. Returns how many; if writing fails, the
  // file ends with the last whole one and accepts no more.
  size_t append(std::vector<trace::SpoolRecord>& records);
  // Removes the oldest steps, so that the newest ones stay that have at most `most` bytes (at least
  // the last step); texts of all steps stay. The file is replaced by a copy, so until then both are
  // on the disk, and a process that is killed leaves one of them whole. Returns how many steps were
  // removed: 0 if the file has only one, or if the copy could not be written.
  size_t keep_newest(Bytes most);
  // Removes the file, unless another one has its name now.
  void remove() noexcept;
  [[nodiscard]] Bytes bytes() const { return bytes_; }
  [[nodiscard]] const std::string& error() const { return error_; }  // "": no error

 private:
  // Forgets the first steps, after all but `kept` bytes of them were removed.
  void forget_steps(size_t count, Bytes kept);

  OutputFolder folder_;
  std::string name_;
  Descriptor file_;
  Bytes bytes_ = 0;
  std::deque<Bytes> steps_;  // where each step begins
  bool can_copy_ = true;
  std::string error_;
};

}  // namespace shardlens::record
