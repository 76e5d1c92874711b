#pragma once

#include <vector>

#include "core/base/units.h"
#include "core/workload/workload.h"

namespace shardlens::sim {

struct ExchangedBytes {  // of an all-to-all on one rank
  Bytes sent = 0, received = 0;
};

// The work of a rank in a microbatch, where ranks run the same operators with other sizes.
struct RankWorkload {
  plan::Workload workload;
  std::vector<ExchangedBytes> exchanged;  // by index into its communications; of all-to-alls
};

}  // namespace shardlens::sim
