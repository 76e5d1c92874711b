#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/units.h"

namespace shardlens::models {

// Writes one .safetensors file tensor by tensor, so that only one tensor is in memory at a time,
// under a temporary name that finish() renames; destroyed without finish() it leaves nothing.
//
// Layout  header padded with spaces to 8 bytes; tensors contiguous in the order given; metadata as
//         transformers writes it ({"format": "pt"}).
// Errors  RuntimeFault with path and the system's reason; a broken call order is an internal error.
class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
  };

  SafetensorsWriter(std::filesystem::path path,
                    std::vector<Tensor> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next tensor's bytes, whole, in the order of construction.
  void append(std::span<const std::byte> bytes);
  // Every tensor has been appended: flushes and puts the file in place.
  void finish();

 private:
  void require_good();

  std::filesystem::path path_, temporary_;
  std::vector<Tensor> tensors_;
  std::vector<Bytes> sizes_;
  size_t next_ = 0;
  bool finished_ = false;
  std::ofstream out_;
};

}  // namespace shardlens::models
