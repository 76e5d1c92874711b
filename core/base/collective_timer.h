#pragma once

#include "core/base/collective.h"
#include "core/base/units.h"

namespace shardlens {

// Models how long a collective takes on some hardware. The emulated process group waits for this
// time, the simulator adds it to virtual time. Implementations are in sim/cost.
class CollectiveTimer {
 public:
  virtual ~CollectiveTimer() = default;
  // `larger_message`: size of the larger of the input and output buffers of one rank (all-gather:
  // output; reduce-scatter: input). Threads: any.
  [[nodiscard]] virtual Nanoseconds duration(CollectiveKind kind,
                                             int ranks,
                                             Bytes larger_message) const = 0;
  // Number of multiprocessors that a collective's kernel occupies on a GPU while it runs.
  // Source: NCCL uses up to 16 channels, one block each, within an NVLink node (graph/tuning.cc).
  [[nodiscard]] virtual int ctas() const { return 16; }
};

}  // namespace shardlens
