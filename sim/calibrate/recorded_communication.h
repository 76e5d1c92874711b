#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/mesh/mesh.h"
#include "core/workload/workload.h"
#include "profiler/analysis/events/intervals.h"
#include "profiler/analysis/recover/recovered_plan.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"
#include "sim/calibrate/observation.h"
#include "sim/engine/rank_workload.h"

namespace shardlens::sim {

// The plan's unit of each name that a trace has for a unit.
using UnitNames = std::map<std::string, UnitId>;

// A collective that the program itself issued in forward, loss or backward, and no unit: those of
// tensor parallelism, all-to-alls of experts, …
struct RecordedCommunication {
  plan::Communication what;  // without group, forward and waited_by
  ExchangedBytes exchanged;  // of an all-to-all
  mesh::Group group;
  std::vector<int64_t> ranks;  // of the group; empty: not in the trace
  bool of_data = false;        // the ranks run the same program on other data, as far as is known
  analysis::Interval when;     // when the collective ran
  analysis::Interval call;     // the host's call
  Nanoseconds issued = 0;      // in the call, after operators that copy its input
  analysis::Interval waited;   // when the host waited for it, or made the stream wait
  bool waits = false;          // `waited` is known
};

// The communication of one rank, by calls. Groups are named after the axis of their description,
// and otherwise have that description.
[[nodiscard]] std::vector<RecordedCommunication> recorded_communications(
    const trace::Trace& trace, const analysis::Timeline& timeline, const UnitNames& units);

// Adds those of the recorded pass, in their places, to the pass and to the workload of `out`, which
// is the pass with the plan's unit numbers; their groups to the plan of `out`. Returns them by
// index into Workload::communications.
std::vector<RecordedCommunication> add_communications(
    const std::vector<RecordedCommunication>& recorded,
    analysis::RecoveredWorkload& pass,
    Observation& out);

}  // namespace shardlens::sim
