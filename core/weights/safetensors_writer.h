#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/units.h"
#include "core/files/atomic_file.h"

namespace shardlens::models {

// Writes one .safetensors file (an AtomicFile) tensor by tensor, so that only one tensor must be in
// memory at a time. Without finish() no file is left.
//
// Layout  header padded with spaces to 8 bytes; tensors contiguous in the order given; metadata as
//         transformers writes it ({"format": "pt"}).
// Errors  RuntimeFault with path and the system's reason; a wrong order of calls is an internal
//         error.
class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
  };

  // The beginning of a file: the length of the header, and the header. Its tensors follow in this
  // order, without gaps.
  [[nodiscard]] static std::string file_beginning(
      std::span<const Tensor> tensors, const std::map<std::string, std::string>& metadata);

  SafetensorsWriter(const std::filesystem::path& path,
                    std::vector<Tensor> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  // Appends all bytes of the next tensor, in the order given to the constructor.
  void append(std::span<const std::byte> bytes);
  // Call after the last tensor: flushes the file and moves it to its path.
  void finish();

 private:
  AtomicFile file_;
  std::vector<Tensor> tensors_;
  std::vector<Bytes> sizes_;
  size_t next_ = 0;
};

}  // namespace shardlens::models
