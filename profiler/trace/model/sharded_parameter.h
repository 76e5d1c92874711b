#pragma once

#include <cstdint>
#include <string>

namespace shardlens::trace {

// A parameter that the program gathers with collectives of its own, as SimpleFSDP does, not FSDP.
struct ShardedParameter {
  std::string name;      // "layers.0.attention.wq.weight"
  std::string unit;      // of the plan, otherwise the block: "layers.0"; "": the root
  int64_t elements = 0;  // of a rank's part, padding included
  int64_t ranks = 1;     // over which it is sharded
  int64_t replicas = 1;  // over which its gradient is all-reduced
  bool trained = true;
  friend bool operator==(const ShardedParameter&, const ShardedParameter&) = default;
};

}  // namespace shardlens::trace
