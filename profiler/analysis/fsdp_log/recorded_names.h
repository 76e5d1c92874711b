#pragma once

#include "profiler/analysis/fsdp_log/fsdp_log.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Gives FSDP1's units the names that shardlens.record wrote: a gather's or a reduction's call is in
// a recorded action, which names the unit. Does nothing if not every unit gets a name of its own.
void name_units(const trace::Trace& trace, FsdpLog& log);

}  // namespace shardlens::analysis
