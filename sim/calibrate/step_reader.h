#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"
#include "sim/calibrate/launched_kernels.h"
#include "sim/calibrate/observation.h"
#include "sim/calibrate/outside_time.h"

namespace shardlens::sim {

// Those of `sorted`, by the time that `time_of` gives, whose time is in `when`. A run has many
// steps, so reading one must not go through the whole trace.
template <class T, class TimeOf>
[[nodiscard]] std::span<const T> in_window(const std::vector<T>& sorted,
                                           const analysis::Interval& when,
                                           TimeOf time_of) {
  const auto begin = std::ranges::lower_bound(sorted, when.start, {}, time_of);
  return {begin, std::ranges::lower_bound(begin, sorted.end(), when.end, {}, time_of)};
}

// An interval of the host's time, and the item that it belongs to.
struct Piece {
  // kWait: the host waited for the item. kWaitingCall: a call of the host that waited until the end
  // of the last collective that ended in it.
  enum class Kind : uint8_t { kOperator, kCopy, kCall, kMark, kWait, kWaitingCall };
  // What the unassigned time before the piece is: the item's own, outside the schedule, a wait, or
  // that of the next operator (of what is outside, if an operator of the optimizer is next).
  enum class Gap : uint8_t { kItem, kOutside, kWait, kNext };
  Kind kind = Kind::kMark;
  Gap gap = Gap::kItem;
  analysis::Interval when;
  size_t item = ~size_t{0};
};

// An index of one trace for reading its steps; built once.
struct TraceIndex {
  TraceIndex(const trace::Trace& of, const analysis::Timeline& its);
  TraceIndex(const TraceIndex&) = delete;  // `outside` refers to `kernels`
  TraceIndex& operator=(const TraceIndex&) = delete;

  const trace::Trace& trace;
  const analysis::Timeline& timeline;
  LaunchedKernels kernels;
  OutsideTime outside;
  analysis::IntervalSet moves;      // while data of collectives moves
  std::vector<Nanoseconds> ends;    // ends of collectives
  std::vector<uint32_t> operators;  // operators of all threads, by start
  std::vector<uint32_t> launches;   // the same of all-reduce actions (only in Shardlens' captures)
};

// Assigns the host's time of a step to items, piece by piece. Each instant belongs to one item.
class StepReader {
 public:
  StepReader(const TraceIndex& index, const Observation& about)
      : index_(index), trace_(index.trace), timeline_(index.timeline), in_(about) {}

  // Finds the planned operators of a section among the operators that ran in `when`.
  void find(const analysis::Interval& when,
            const std::set<uint32_t>& tracks,
            const std::vector<size_t>& planned,
            Piece::Gap gap);
  void add(const Piece& piece) { pieces_.push_back(piece); }
  [[nodiscard]] ObservedStep read(const analysis::Step& step);

 private:
  struct Beside {
    Nanoseconds host = 0, copied = 0;
  };
  [[nodiscard]] std::vector<uint32_t> operators_in(const analysis::Interval& when,
                                                   const std::set<uint32_t>& tracks) const;
  void give_host(size_t item, const analysis::Interval& when);
  void take_gap(const Piece& piece, const analysis::Interval& when);
  void take(const Piece& piece);
  void take_waiting(const Piece& piece, const analysis::Interval& when);
  void give_next(const Piece& piece);
  void outside(const analysis::Interval& when);

  const TraceIndex& index_;
  const trace::Trace& trace_;
  const analysis::Timeline& timeline_;
  const Observation& in_;
  std::vector<Piece> pieces_;
  Nanoseconds at_ = 0;
  ObservedStep out_;
  std::vector<Beside> beside_;            // by item
  std::vector<analysis::Interval> next_;  // gaps that the next operator gets
};

}  // namespace shardlens::sim
