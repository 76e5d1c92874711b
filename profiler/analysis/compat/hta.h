#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// What Holistic Trace Analysis prints for a rank, by its own definitions, for those who compare;
// where they differ from ours, docs/metrics.md says how.
struct HtaFigures {
  int64_t rank = 0;
  std::optional<double> overlap_percent;  // get_comm_comp_overlap; nullopt: NaN
  // get_temporal_breakdown; nullopt: the trace has no GPU row and HTA fails.
  struct Temporal {
    double idle_us = 0, compute_us = 0, non_compute_us = 0, kernel_us = 0;
    double idle_percent = 0, compute_percent = 0, non_compute_percent = 0;  // of kernel_us
  };
  std::optional<Temporal> temporal;
};

// All ranks together, because HTA counts the profiler steps of all of them. Traces read with
// ReadOptions::keep_args, since old files write a stream that is none in a way of their own.
//
// Source  HolisticTraceAnalysis 0.5.0: hta/common/trace.py, trace_parser.py, trace_filter.py,
// utils/utils.py, analyzers/{communication,breakdown}_analysis.py.
[[nodiscard]] std::vector<HtaFigures> hta_figures(const std::vector<trace::Trace>& traces);

}  // namespace shardlens::analysis
