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
  void release_reduction();  // compute waits for the last reduction; frees its buffers
  void finish_all_reduce(UnitId unit);
};

}  // namespace shardlens::schedule
