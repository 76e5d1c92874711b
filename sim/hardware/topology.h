#pragma once

#include <string>
#include <vector>

namespace shardlens::sim {

// A link between two ends, each "gpu0", "gpu1", … or the name of a switch, bridge or processor.
// `gbps`: GB/s in each direction.
struct TopologyLink {
  std::string a, b;
  double gbps = 0;
};

// Bus bandwidth of the best ring through all GPUs. For up to eight GPUs all orders are tried, for
// more only the order of their numbers. Each hop takes the route with the fewest links. A ring's
// bandwidth is the smallest bandwidth of its links, each divided by the number of hops through it.
// 0: some GPU cannot be reached.
//
// Source  NCCL builds its rings in the same manner from the node's topology (graph/search.cc).
[[nodiscard]] double ring_gbps(const std::vector<TopologyLink>& links, int gpus);

// The part of `all_gbps`, the bandwidth of all rings of a node, that the first `ranks` GPUs have
// among themselves. Where GPUs are linked in pairs without a switch, and all rings together are
// faster than one link, each link carries some of them; a group of fewer GPUs has only its own
// links.
[[nodiscard]] double group_gbps(const std::vector<TopologyLink>& links, int ranks, double all_gbps);

}  // namespace shardlens::sim
