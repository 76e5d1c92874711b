#pragma once

#include <memory>

#include <c10/core/Device.h>

#include "core/dist/world.h"

namespace shardlens::test {

// Rank 0 of an emulated world.
inline std::unique_ptr<dist::World> emulated_world(int ranks, c10::Device device) {
  dist::WorldOptions options;
  options.backend = dist::BackendKind::kEmulated;
  options.world_size = ranks;
  options.device = device;
  return dist::World::join(options);
}

}  // namespace shardlens::test
