#include "profiler/analysis/fsdp_log/host_log.h"

namespace shardlens::analysis {

HostLog read_host_log(const trace::Trace& trace) {
  HostLog out;
  out.lists = EventLists(trace);
  out.fsdp = read_fsdp_log(trace, out.lists);
  out.sections = Sections(trace, out.lists, out.fsdp);
  return out;
}

}  // namespace shardlens::analysis
