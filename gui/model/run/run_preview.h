#pragma once

#include <cstddef>
#include <cstdint>

#include "gui/model/run/run_data.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::gui {

// What has been read of a run, of which one trace is drawn.
struct ReadPart {
  size_t events = 0;             // of the trace, from first_of_part() on
  bool whole = false;            // the trace has been read to its end
  uint64_t read = 0, total = 0;  // bytes of all files of the run; total 0: not known
  size_t left_out = 0;           // events of the trace before the first that is drawn
};

// Whether a picture of the part is worth its time: it has at least `from` events or is a whole
// trace, is not so large that its picture takes long itself, and several times `from` events are
// still to come.
[[nodiscard]] bool is_worth_showing(const ReadPart& part, size_t from);

// Whether the trace has what ran on the device only behind what has been read, as PyTorch writes
// it. Without that, the host's operators would be drawn as the compute.
[[nodiscard]] bool lacks_device(const trace::Trace& so_far);

// The first event that is drawn of a trace: if `from` events or more of only the host come first,
// the first one behind these `host_only` events; otherwise 0.
[[nodiscard]] size_t first_of_part(const trace::Trace& so_far, size_t host_only, size_t from);

// A picture of a run of which only `part`, of one trace, has been read. It has the lanes whose
// items the rest of the run does not change: not exposed communication, idle time and steps, which
// depend on all events. RunData::preview is set.
//
// Errors  those of RunData.
[[nodiscard]] RunPointer preview_of(trace::Trace part, const trace::Progress* progress);

}  // namespace shardlens::gui
