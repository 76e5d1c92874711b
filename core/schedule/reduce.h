#pragma once

#include "core/schedule/gather.h"

namespace shardlens::schedule {

// Gradients: reduce-scatters and all-reduces, and what becomes of their results.
struct Reductions : Gathers {
  [[nodiscard]] BufferId reduce_input(UnitId unit, Stream stream);
  void accumulate_in_reduce_dtype(UnitId unit);
  void store(UnitId unit, Stream stream, BufferId gradient);
  void finish_offload(UnitId unit);  // the host waits for the gradient
  void fsdp1_reduce(UnitId unit);
  void fsdp2_reduce(UnitId unit);
  // Compute waits for reductions, oldest first, until `keep` are left; their buffers are freed.
  void release_reductions(size_t keep = 0);
  // The same until none of this unit is left, whose buffers the next one uses.
  void release_reductions_of(UnitId unit);
  void finish_all_reduce(UnitId unit);
};

}  // namespace shardlens::schedule
