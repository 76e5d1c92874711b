#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "profiler/trace/compression.h"
#include "profiler/trace/trace.h"

namespace shardlens::trace {

struct ReadOptions {
  bool keep_args = false;  // keep each event's args as written (convert needs them; they take most
                           // of the memory)
};

// Reads a Kineto or Chrome trace: an object or a bare array of events; plain, gzip or zstd.
//
// Units    ts and dur are microseconds, parsed from their decimal text to nanoseconds, never
// through a double;
//          baseTimeNanoseconds is added. A file whose times are already of the epoch though it
//          names a base (PyTorch's transition files) is left as it is, with a note.
// Errors   InputError with file and byte offset for what is no JSON, is cut off, or is no trace. A
// single event that cannot be used
//          (no ts, negative duration, a time that does not fit) is left out and counted in
//          Trace::diagnostics.
[[nodiscard]] Trace read_kineto(const std::filesystem::path& path, const ReadOptions& options = {});
[[nodiscard]] Trace parse_kineto(std::string_view json,
                                 const std::string& source,
                                 const ReadOptions& options = {});

// "…rank12…", "…rank-12…", "…rank_12…" in a file's name.
[[nodiscard]] std::optional<int64_t> rank_of_file_name(std::string_view name);

}  // namespace shardlens::trace
