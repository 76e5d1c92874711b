#pragma once

#include <filesystem>
#include <string>

#include "profiler/trace/trace.h"

namespace shardlens::trace {

// The trace as Kineto JSON, which Perfetto, Chrome and Holistic Trace Analysis read: schemaVersion,
// distributedInfo, baseTimeNanoseconds, displayTimeUnit, traceEvents with names of processes and
// threads, traceName. ts and dur are microseconds with exactly three decimals, relative to
// metadata.base_time, so that reading back gives the same nanoseconds.
//
// A collective's arguments are Kineto's (`Collective name`, `In msg nelems`, …) and ours: `unit`
// (FQN), `seq`, `action`, `issued_ns`. Actions and hook events are instants of category
// `shardlens`: `seq`, `op` or `hook`, `unit`, `stream`, `buffer`, `event`, `cause`, `axis`
// (docs/trace_format.md).
[[nodiscard]] std::string to_kineto_json(const Trace& trace);

// Writes it, compressed when the name ends in .gz, under a temporary name that is then renamed.
// Errors: UsageError for a name that ends in neither .json nor .json.gz; RuntimeFault if it cannot
// be written.
void write_kineto(const Trace& trace, const std::filesystem::path& path);

}  // namespace shardlens::trace
