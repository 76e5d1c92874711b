#include "profiler/analysis/figures/figure_table.h"

#include <array>

namespace shardlens::analysis {
namespace {

template <Nanoseconds StepFigures::*kMember>
Nanoseconds kept(const WindowFigures& figures) {
  return figures.*kMember;
}

}  // namespace

std::span<const FigureRow> figure_table() {
  static constexpr std::array kRows{
      FigureRow{.key = "span_ns",
                .label = "span",
                .time = [](const WindowFigures& f) { return f.duration(); }},
      FigureRow{.key = "compute_ns",
                .label = "compute",
                .part = true,
                .member = &StepFigures::compute,
                .time = kept<&StepFigures::compute>},
      FigureRow{.key = "comm_ns",
                .label = "comm",
                .column = false,
                .metric = "comm",
                .member = &StepFigures::comm,
                .time = kept<&StepFigures::comm>},
      FigureRow{.key = "overlap_ns",
                .label = "hidden comm",
                .column = false,
                .member = &StepFigures::overlap,
                .time = kept<&StepFigures::overlap>},
      FigureRow{.key = "exposed_comm_ns",
                .label = "exposed comm",
                .part = true,
                .member = &StepFigures::exposed_comm,
                .time = kept<&StepFigures::exposed_comm>},
      FigureRow{.key = "exposed_copy_ns",
                .label = "exposed copy",
                .part = true,
                .member = &StepFigures::exposed_copy,
                .time = kept<&StepFigures::exposed_copy>},
      FigureRow{.key = "idle_ns",
                .label = "idle",
                .part = true,
                .member = &StepFigures::idle,
                .time = kept<&StepFigures::idle>},
      FigureRow{.key = "overlap_ratio",
                .label = "overlap",
                .ratio = [](const WindowFigures& f) { return f.overlap_ratio(); }},
  };
  return kRows;
}

std::span<const KindFigureRow> kind_figure_table() {
  static constexpr auto kMatched = [](const KindFigures& k) { return k.matched > 0; };
  static constexpr std::array kRows{
      KindFigureRow{.key = "count", .number = &KindFigures::count},
      KindFigureRow{.key = "bytes",
                    .number = &KindFigures::bytes,
                    .known = [](const KindFigures& k) { return k.bytes != 0; }},
      KindFigureRow{.key = "busy_ns", .number = &KindFigures::busy},
      KindFigureRow{.key = "exposed_ns", .number = &KindFigures::exposed},
      KindFigureRow{.key = "matched", .number = &KindFigures::matched, .of_rank = false},
      KindFigureRow{.key = "transfer_ns",
                    .number = &KindFigures::transfer,
                    .known = kMatched,
                    .of_rank = false},
      KindFigureRow{
          .key = "wait_ns", .number = &KindFigures::wait, .known = kMatched, .of_rank = false},
      KindFigureRow{.key = "algbw_gbps", .ratio = &KindFigures::algbw, .of_rank = false},
      KindFigureRow{.key = "busbw_gbps", .ratio = &KindFigures::busbw, .of_rank = false},
  };
  return kRows;
}

}  // namespace shardlens::analysis
