#pragma once

#include "cli/flags/run_options.h"

namespace shardlens::cli {

// This process's rank, and the number of ranks.
struct Placement {
  int rank = 0, local_rank = 0, world_size = 1;
};

// From --rank and --world-size if emulated; otherwise from the environment variables of `shardlens
// capture` and torchrun (RANK, WORLD_SIZE, LOCAL_RANK), Open MPI (OMPI_COMM_WORLD_*), MPICH (PMI_*)
// or Slurm (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID), in this order; a single rank if none is
// set.
// Errors: UsageError naming the variable, its value and the expected values.
[[nodiscard]] Placement placement_of(const RunOptions& options);

}  // namespace shardlens::cli
