#pragma once

#include <span>

#include "tests/core/fsdp/place.h"

namespace shardlens::test {

// What users do, in a place and on the CPU.
struct DeviceCase {
  const char* name;
  // `share`: of the norm of what the CPU computes, which the place may differ by. Errors: Mismatch.
  void (*run)(const Place& place, double share);
};
[[nodiscard]] std::span<const DeviceCase> device_cases();

}  // namespace shardlens::test
