#include "sim/engine/communicators.h"

namespace shardlens::sim {

std::vector<std::vector<uint32_t>> add_communicators(Machine& machine,
                                                     const plan::ResolvedPlan& plan,
                                                     uint32_t ranks) {
  std::vector<std::vector<uint32_t>> of(ranks);
  for (const mesh::Group& group : plan.groups) {
    if (ranks == 1) {  // one for all: identical ranks do not wait for each other
      of[0].push_back(machine.add_communicator(1));
      continue;
    }
    std::vector<uint32_t> members(ranks), made(ranks);  // by the first rank of the group
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      ++members[static_cast<size_t>(group.first(rank))];
    }
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const auto first = static_cast<size_t>(group.first(rank));
      if (first == rank) {
        made[rank] = machine.add_communicator(members[rank]);
      }
      of[rank].push_back(made[first]);
    }
  }
  return of;
}

}  // namespace shardlens::sim
