#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "tests/support/temporary_directory.h"

namespace shardlens::models::testing {

using test::TemporaryDirectory;

// The bytes of a safetensors file with this header and data, which need not be valid.
inline std::string raw_file(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string out(sizeof(length), '\0');
  std::memcpy(out.data(), &length, sizeof(length));
  return out + header + data;
}

inline std::filesystem::path write(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

}  // namespace shardlens::models::testing
