#pragma once

#include "cli/flags/run_options.h"

namespace shardlens::cli {

// Which rank of how many this process is.
struct Placement {
  int rank = 0, local_rank = 0, world_size = 1;
};

// From --rank and --world-size when emulated; otherwise from the environment that `shardlens
// capture` and torchrun (RANK, WORLD_SIZE, LOCAL_RANK), Open MPI (OMPI_COMM_WORLD_*), MPICH (PMI_*)
// or Slurm (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID) set, in this order; alone where none does.
// Errors: UsageError naming the variable, its value and what was expected.
[[nodiscard]] Placement placement_of(const RunOptions& options);

}  // namespace shardlens::cli
