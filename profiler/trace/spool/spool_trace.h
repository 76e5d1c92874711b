#pragma once

#include "profiler/trace/model/trace.h"
#include "profiler/trace/spool/spool_format.h"

namespace shardlens::trace {

// Converts a spool to a trace (docs/reference/formats.md): operators, ranges and ProfilerStep#k on
// the thread that ran them; collectives on one track per communicator; actions and hook events as
// instants; device records as in spool_device_trace.h. Events are sorted by start, an enclosing
// event before those it contains. Losses (no end marker; dropped, damaged or incomplete records; a
// step without an end, which gets no ProfilerStep) are listed in the trace's diagnostics and in
// Metadata::notes, which are written to the trace file.
[[nodiscard]] Trace spool_to_trace(const Spool& spool);

}  // namespace shardlens::trace
