#pragma once

#include <cstdint>
#include <vector>

#include "core/workload/workload.h"
#include "profiler/analysis/events/intervals.h"
#include "profiler/analysis/fsdp_log/sections.h"
#include "profiler/trace/model/trace.h"

// Converts operators of a PyTorch trace to operators of a workload. Arguments are available only if
// the trace was read with ReadOptions::keep_args.
namespace shardlens::analysis {

// Host operators that contain no other operator; see [Note: Leaf operators].
[[nodiscard]] std::vector<uint32_t> leaf_operators(const trace::Trace& trace);

// The phase of work in a section.
[[nodiscard]] plan::Phase phase_of(Section section);

// By event: whether it is an operator of backward that an activation checkpoint runs again, or is
// called by one. See [Note: Recomputed operators] (recovered_checkpoints.h). None is in a trace
// without arguments.
[[nodiscard]] std::vector<bool> recomputed_operators(const trace::Trace& trace,
                                                     const Sections& sections);

struct TracedOperator {  // an operator as a trace shows it
  plan::Operator op;     // without unit and module
  bool shaped = false;   // the trace has its shapes; otherwise `op` has no sizes
};
[[nodiscard]] TracedOperator recorded_operator(const trace::Trace& trace,
                                               const trace::Event& event,
                                               Section section);

// Sets batch and seq from the shape of the tokens of the first embedding in `window`.
void find_batch(const trace::Trace& trace, const Interval& window, plan::Workload& workload);

}  // namespace shardlens::analysis
