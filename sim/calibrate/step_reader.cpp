#include "sim/calibrate/step_reader.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string_view>
#include <utility>

#include "profiler/analysis/events/names.h"
#include "profiler/analysis/fsdp_log/ddp_log.h"

namespace shardlens::sim {
namespace {

using analysis::Interval;
using analysis::IntervalSet;
using analysis::Timeline;
using trace::Category;
using trace::Event;

constexpr std::string_view kAttention = "scaled_dot_product";

IntervalSet data_moves(const Timeline& timeline) {
  std::vector<Interval> each;
  for (const analysis::Collective& collective : timeline.collectives) {
    const Nanoseconds moves = collective.transfer.value_or(collective.when.length());
    each.push_back({collective.when.end - moves, collective.when.end});
  }
  return analysis::union_of(std::move(each));
}

double share_of(Nanoseconds part, Nanoseconds whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

TraceIndex::TraceIndex(const trace::Trace& of, const Timeline& its)
    : trace(of), timeline(its), kernels(of, its), outside(its, kernels), moves(data_moves(its)) {
  for (const analysis::Collective& each : its.collectives) {
    ends.push_back(each.when.end);
  }
  std::sort(ends.begin(), ends.end());
  for (uint32_t i = 0; i < of.events.size(); ++i) {
    const Event& event = of.events[i];
    if (event.phase == trace::EventPhase::kComplete && event.category == Category::kCpuOp) {
      operators.push_back(i);
    } else if (event.category == Category::kShardlens && of.action(event) != nullptr &&
               of.action(event)->action.op == schedule::Op::kAllReduce) {
      launches.push_back(i);
    }
  }
  std::stable_sort(operators.begin(), operators.end(), [&](uint32_t a, uint32_t b) {
    const Event &x = of.events[a], &y = of.events[b];
    return x.start != y.start ? x.start < y.start : x.duration > y.duration;
  });
  std::ranges::stable_sort(launches, {}, [&of](uint32_t i) { return of.events[i].start; });
}

void StepReader::find(const Interval& when,
                      const std::set<uint32_t>& tracks,
                      const std::vector<size_t>& planned,
                      Piece::Gap gap) {
  const std::vector<uint32_t> ran = operators_in(when, tracks);
  std::set<std::string_view> names;
  for (const uint32_t index : ran) {
    names.insert(trace_.name(trace_.events[index]));
  }
  std::map<std::string_view, std::deque<size_t>> open;
  for (const size_t position : planned) {
    const plan::Operator& op = in_.workload.operators[in_.planned.order[position].index];
    // Attention's kernels have many names.
    const bool attention = op.kind == plan::OperatorKind::kAttention && !names.contains(op.name);
    open[attention ? kAttention : std::string_view(op.name)].push_back(position);
  }
  Nanoseconds within = when.start;  // end of the last match; operators before it are nested in it
  for (const uint32_t index : ran) {
    const Event& event = trace_.events[index];
    if (event.start < within) {
      continue;
    }
    const std::string_view name = trace_.name(event);
    auto found = open.find(name);
    if (found == open.end() && name.find(kAttention) != std::string_view::npos) {
      found = open.find(kAttention);
    }
    if (found != open.end() && !found->second.empty()) {
      pieces_.push_back(
          {Piece::Kind::kOperator, gap, {event.start, event.end()}, found->second.front()});
      found->second.pop_front();
      within = event.end();
    }
  }
}

ObservedStep StepReader::read(const analysis::Step& step) {
  std::stable_sort(pieces_.begin(), pieces_.end(),
                   [](const Piece& a, const Piece& b) { return a.when.start < b.when.start; });
  out_.number = step.number;
  out_.duration = step.window.length();
  out_.items.resize(in_.planned.order.size());
  beside_.resize(out_.items.size());
  at_ = step.host.start;
  for (const Piece& piece : pieces_) {
    if (piece.when.start > at_) {
      take_gap(piece, {at_, piece.when.start});
    }
    take(piece);
    at_ = std::max(at_, piece.when.end);
  }
  for (const Interval& when : next_) {
    outside(when);
  }
  outside({at_, step.host.end});
  for (size_t i = 0; i < beside_.size(); ++i) {
    ObservedItem& item = out_.items[i];
    item.host_beside = share_of(beside_[i].host, item.host);
    item.copied_beside = share_of(beside_[i].copied, item.copied);
  }

  return std::move(out_);
}

std::vector<uint32_t> StepReader::operators_in(const Interval& when,
                                               const std::set<uint32_t>& tracks) const {
  std::vector<uint32_t> ran;
  Nanoseconds reducer_until = when.start;
  const auto first =
      std::lower_bound(index_.operators.begin(), index_.operators.end(), when.start,
                       [&](uint32_t i, Nanoseconds time) { return trace_.events[i].start < time; });
  for (auto each = first; each != index_.operators.end() && trace_.events[*each].start < when.end;
       ++each) {
    const uint32_t i = *each;
    if (!tracks.contains(trace_.events[i].track)) {
      continue;
    }
    const Event& event = trace_.events[i];
    if (analysis::is_reducer_range(trace_.name(event)) ||
        analysis::is_c10d_operator(trace_.name(event))) {
      reducer_until = std::max(reducer_until, event.end());
    } else if (event.start >= reducer_until) {
      ran.push_back(i);
    }
  }
  return ran;
}

void StepReader::give_host(size_t item, const Interval& when) {
  out_.items[item].host += when.length();
  if (in_.host == HostMode::kCompute) {
    beside_[item].host += analysis::length_within(index_.moves, when);
  }
}

void StepReader::take_gap(const Piece& piece, const Interval& when) {
  switch (piece.gap) {
    case Piece::Gap::kOutside:
      return outside(when);
    case Piece::Gap::kNext:
      next_.push_back(when);
      return;
    case Piece::Gap::kWait:
      return take_waiting(piece, when);
    case Piece::Gap::kItem:
      return give_host(piece.item, when);
  }
}

// The host waited until the end of the last collective that ended in this interval.
void StepReader::take_waiting(const Piece& piece, const Interval& when) {
  Interval own = when;
  if (in_.host == HostMode::kCompute) {
    const auto after = std::upper_bound(index_.ends.begin(), index_.ends.end(), when.end);
    if (after != index_.ends.begin() && *std::prev(after) > when.start) {
      own.start = *std::prev(after);
      out_.items[piece.item].waited += own.start - when.start;
    }
  }
  give_host(piece.item, own);
}

// Assigns the gaps that were left for the next operator.
void StepReader::give_next(const Piece& piece) {
  for (const Interval& when : next_) {
    piece.gap == Piece::Gap::kOutside ? outside(when) : give_host(piece.item, when);
  }
  next_.clear();
}

void StepReader::take(const Piece& piece) {
  const Interval when{std::max(at_, piece.when.start), std::max(at_, piece.when.end)};
  const bool device = in_.host == HostMode::kAhead;
  if (piece.kind == Piece::Kind::kOperator || piece.gap == Piece::Gap::kOutside) {
    give_next(piece);
  }
  if (piece.kind == Piece::Kind::kMark) {
    return;
  }
  ObservedItem& item = out_.items[piece.item];
  if (piece.kind == Piece::Kind::kWait) {
    item.waited += when.length();
    return;
  }
  if (piece.kind == Piece::Kind::kWaitingCall) {
    return take_waiting(piece, when);
  }
  if (piece.kind == Piece::Kind::kOperator && !device) {
    item.run = when.length();
    item.beside = share_of(analysis::length_within(index_.moves, when), item.run);
    return;
  }
  give_host(piece.item, when);
  if (piece.kind == Piece::Kind::kCopy && !device) {
    item.copied += when.length();
    beside_[piece.item].copied += analysis::length_within(index_.moves, when);
  } else if (piece.kind != Piece::Kind::kCall && device) {
    const LaunchedKernels::Sum found = index_.kernels.within(when, analysis::Nature::kCompute);
    const LaunchedKernels::Sum copies = index_.kernels.within(when, analysis::Nature::kCopy);
    if (found.count > 0) {
      item.run = std::max<Nanoseconds>(item.run, 0) + found.duration;
      item.beside = found.beside;
    }
    if (piece.kind == Piece::Kind::kCopy && copies.count > 0) {
      item.run = std::max<Nanoseconds>(item.run, 0) + copies.duration;
    }
  }
}

void StepReader::outside(const Interval& when) {
  index_.outside.add(in_.host, when, out_);
}

}  // namespace shardlens::sim
