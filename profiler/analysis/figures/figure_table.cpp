#include "profiler/analysis/figures/figure_table.h"

#include <array>

namespace shardlens::analysis {

std::span<const FigureRow> figure_table() {
  static constexpr std::array kRows{
      FigureRow{.key = "span_ns",
                .label = "span",
                .time = [](const WindowFigures& f) { return f.duration(); }},
      FigureRow{.key = "compute_ns",
                .label = "compute",
                .part = true,
                .time = [](const WindowFigures& f) { return f.compute; }},
      FigureRow{.key = "comm_ns",
                .label = "comm",
                .column = false,
                .metric = "comm",
                .time = [](const WindowFigures& f) { return f.comm; }},
      FigureRow{.key = "overlap_ns",
                .label = "hidden comm",
                .column = false,
                .time = [](const WindowFigures& f) { return f.overlap; }},
      FigureRow{.key = "exposed_comm_ns",
                .label = "exposed comm",
                .part = true,
                .time = [](const WindowFigures& f) { return f.exposed_comm; }},
      FigureRow{.key = "exposed_copy_ns",
                .label = "exposed copy",
                .part = true,
                .time = [](const WindowFigures& f) { return f.exposed_copy; }},
      FigureRow{.key = "idle_ns",
                .label = "idle",
                .part = true,
                .time = [](const WindowFigures& f) { return f.idle; }},
      FigureRow{.key = "overlap_ratio",
                .label = "overlap",
                .ratio = [](const WindowFigures& f) { return f.overlap_ratio(); }},
  };
  return kRows;
}

}  // namespace shardlens::analysis
