#pragma once

#include "profiler/trace/model/trace.h"
#include "profiler/trace/spool/spool_format.h"

namespace shardlens::trace {

// The trace that a spool holds, as docs/trace_format.md lays it out: operators, ranges and
// ProfilerStep#k on the thread that ran them; collectives on one track per communicator; actions
// and hook events as instants; what the device did as spool_device_trace.h says. Events are sorted
// by start, an enclosing one before what it contains. What the spool lost (no end marker, dropped,
// damaged or incomplete records, a step without an end, which gets no ProfilerStep) is said in the
// trace's diagnostics and in Metadata::notes, which are written with it.
[[nodiscard]] Trace spool_to_trace(const Spool& spool);

}  // namespace shardlens::trace
