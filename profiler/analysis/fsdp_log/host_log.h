#pragma once

#include "profiler/analysis/events/event_lists.h"
#include "profiler/analysis/fsdp_log/fsdp_log.h"
#include "profiler/analysis/fsdp_log/sections.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// The part of a Timeline that follows from what the host recorded.
struct HostLog {
  EventLists lists;
  FsdpLog fsdp;       // what FSDP did, if the trace has its ranges; with the root among its units
  Sections sections;  // owners of the host's time
};

[[nodiscard]] HostLog read_host_log(const trace::Trace& trace);

}  // namespace shardlens::analysis
