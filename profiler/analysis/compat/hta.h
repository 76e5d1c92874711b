#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// The figures of Holistic Trace Analysis (HTA) for a rank, by HTA's own definitions, for
// comparison. docs/reference/metrics.md explains how they differ from Shardlens's definitions.
struct HtaFigures {
  int64_t rank = 0;
  std::optional<double> overlap_percent;  // get_comm_comp_overlap; nullopt: NaN
  // get_temporal_breakdown; nullopt: the trace has no GPU row and HTA fails.
  struct Temporal {
    double idle_us = 0, compute_us = 0, non_compute_us = 0, kernel_us = 0;
    double idle_percent = 0, compute_percent = 0, non_compute_percent = 0;  // share of kernel_us
  };
  std::optional<Temporal> temporal;
};

// Takes all ranks at once, because HTA counts the profiler steps of all of them. The traces must be
// read with ReadOptions::keep_args, because old files write a special number if there is no stream.
//
// Source  HolisticTraceAnalysis 0.5.0: hta/common/trace.py, trace_parser.py, trace_filter.py,
// utils/utils.py, analyzers/{communication,breakdown}_analysis.py.
[[nodiscard]] std::vector<HtaFigures> hta_figures(const std::vector<trace::Trace>& traces);

}  // namespace shardlens::analysis
