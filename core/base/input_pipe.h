#pragma once

#include <filesystem>

namespace shardlens {

// Waits until a named pipe has data. During this object's lifetime, opening `path` for reading does
// not wait for a writer, but its end cannot be read: destroy the object before reading. Nothing
// happens for other paths.
//
// Errors  InputError if the pipe has no data within ten seconds.
class InputPipe {
 public:
  explicit InputPipe(const std::filesystem::path& path);
  ~InputPipe();
  InputPipe(const InputPipe&) = delete;
  InputPipe& operator=(const InputPipe&) = delete;

 private:
  int read_ = -1, write_ = -1;
};

}  // namespace shardlens
