#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/workload.h"
#include "profiler/analysis/events/intervals.h"
#include "profiler/analysis/fsdp_log/sections.h"
#include "profiler/trace/model/trace.h"

// Operators of a PyTorch trace as operators of a workload. Arguments are those of a trace that was
// read with ReadOptions::keep_args.
namespace shardlens::analysis {

// Operators of the host that hold no other operator, as [Note: Leaf operators] has it.
[[nodiscard]] std::vector<uint32_t> leaf_operators(const trace::Trace& trace);

struct RecordedOperator {
  plan::Operator op;    // without unit and module
  bool shaped = false;  // the trace has its shapes; without them it has no sizes
};
[[nodiscard]] RecordedOperator recorded_operator(const trace::Trace& trace,
                                                 const trace::Event& event,
                                                 Section section);

// Sets batch and seq from the tokens that the first embedding of `window` looks up.
void find_batch(const trace::Trace& trace, const Interval& window, plan::Workload& workload);

}  // namespace shardlens::analysis
