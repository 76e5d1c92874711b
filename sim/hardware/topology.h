#pragma once

#include <string>
#include <vector>

namespace shardlens::sim {

// A wire between two ends, each "gpu0", "gpu1", … or the name of a switch, bridge or processor;
// GB/s in each direction.
struct TopologyLink {
  std::string a, b;
  double gbps = 0;
};

// Bus bandwidth of the best ring through all GPUs: of all orders of up to eight GPUs (beyond, of
// their numbers alone), each hop along the fewest wires, the one whose busiest wire leaves most for
// each passage. 0: some GPU cannot be reached.
//
// Source  NCCL builds its rings in the same manner from the node's topology (graph/search.cc):
//         ring bandwidth is that of the slowest wire, divided by how often it is passed.
[[nodiscard]] double ring_gbps(const std::vector<TopologyLink>& links, int gpus);

}  // namespace shardlens::sim
