#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "profiler/trace/bytes/progress.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::trace {

// Whether a file whose content begins so is an SQLite database.
[[nodiscard]] bool is_sqlite(std::string_view head);

// Reads what `nsys export --type sqlite` wrote: a trace of each process that used a GPU, by process
// id. Kernels, copies, calls of CUDA and synchronisations are those of Kineto, NVTX ranges are
// annotations, those of torch's emit_nvtx operators.
//
// Units    nanoseconds since the session's start, to which its time of the epoch is added.
// Ranks    those that NCCL's ranges state when the first communicator was made; else not known.
// Memory   the traces.
// Errors   InputError for a file that SQLite cannot read; NotATrace for a database without
//          tables of Nsight Systems. Rows that cannot be used are counted in the diagnostics.
// Source   NVIDIA Nsight Systems, "SQLite Schema Reference" of its user guide (2021.5 to 2025.5).
[[nodiscard]] std::vector<Trace> read_nsight(const std::filesystem::path& path,
                                             Progress* progress = nullptr);

}  // namespace shardlens::trace
