#pragma once

#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// The timeline of a program that gathers its parameters itself (Timeline::rewritten), with a log of
// FSDP that does the same.
//
// [Note: Units of a program] What one gather of forward moves is a unit: a parameter, or a bucket
// of several. The forward of a unit begins where the step waits for its gather, and ends where it
// waits for another unit's. Its backward begins where the reduction before its own was called or,
// if its parameters are gathered again, where the step waits for them; it ends with the call of its
// reduction. A gather that was called before another one was waited for was prefetched in that
// unit's hook, or in the hook before, whichever is nearer. Calls and waits with no operator between
// them are parts of one hook. See also [Note: Parts gathered again]: such a gather is no unit's,
// but communication of the program's own.
//
// `trace`: the timeline's.
//
// Errors  InputError if no pass of the trace gathers and reduces, if parameters of a collective are
//         not known, and if gathers and reductions move different groups of parameters.
[[nodiscard]] Timeline with_program_units(const trace::Trace& trace, const Timeline& timeline);

}  // namespace shardlens::analysis
