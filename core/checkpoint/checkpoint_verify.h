#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "core/checkpoint/checkpoint_reader.h"

namespace shardlens::checkpoint {

struct Verification {  // what verify() found
  int64_t pieces = 0;
  Bytes bytes = 0;
  int64_t without_checksum = 0;      // pieces that could only be found, not compared
  std::vector<std::string> damaged;  // a message for each piece, naming file and parameter
};

// Reads every byte of a checkpoint and compares all checksums. Does not throw for damage.
[[nodiscard]] Verification verify(Reader& reader);

}  // namespace shardlens::checkpoint
