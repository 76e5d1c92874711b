#pragma once

#include <string>

namespace shardlens::cli {

// What run.json says of the machine: {"host", "system", "cpu", "cores", "memory_bytes", "gpus"}; a
// value that the system does not tell is null.
[[nodiscard]] std::string host_info_json();

// Number of NVIDIA GPUs whose driver is loaded.
[[nodiscard]] int gpu_count();

}  // namespace shardlens::cli
