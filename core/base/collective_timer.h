#pragma once

#include "core/base/collective.h"
#include "core/base/units.h"

namespace shardlens {

// How long a collective takes on some hardware. The emulated process group sleeps by it, the
// simulator adds it to virtual time; implementations live in sim/cost.
class CollectiveTimer {
 public:
  virtual ~CollectiveTimer() = default;
  // `larger_message`: the larger of the input and output buffer of one rank (all-gather: output;
  // reduce-scatter: input). Threads: const and callable from any thread.
  [[nodiscard]] virtual Nanoseconds duration(CollectiveKind kind,
                                             int ranks,
                                             Bytes larger_message) const = 0;
  // Multiprocessors that a collective's kernel occupies meanwhile, on a GPU.
  // Source: NCCL takes up to 16 channels, one block each, within an NVLink node (graph/tuning.cc).
  [[nodiscard]] virtual int ctas() const { return 16; }
};

}  // namespace shardlens
