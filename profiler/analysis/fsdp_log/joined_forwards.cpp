#include "profiler/analysis/fsdp_log/joined_forwards.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "profiler/analysis/events/names.h"

namespace shardlens::analysis {
namespace {

// The work of one forward of the root and of the backward after it.
struct RootForward {
  Nanoseconds start = std::numeric_limits<Nanoseconds>::max();
  std::map<uint32_t, int> forwards, backwards;  // by unit: pre-forwards, pre-backwards
  bool has_backward = false;
};

std::vector<RootForward> root_forwards(const FsdpLog& log) {
  std::vector<RootForward> out;
  for (const FsdpEvent& e : log.events) {
    if (e.pass >= out.size()) {
      out.resize(e.pass + 1);
    }
    RootForward& at = out[e.pass];
    at.start = std::min(at.start, e.when.start);
    at.forwards[e.unit] += e.call == FsdpCall::kPreForward && !e.backward ? 1 : 0;
    at.backwards[e.unit] += e.call == FsdpCall::kPreBackward ? 1 : 0;
    at.has_backward = at.has_backward || e.backward;
  }
  return out;
}

// For how many forwards like the last one the backward ran.
int differentiated(const RootForward& last) {
  int most = 1;
  for (const auto& [unit, times] : last.backwards) {
    const auto forwards = last.forwards.find(unit);
    if (forwards != last.forwards.end() && forwards->second > 0) {
      most = std::max(most, times / forwards->second);
    }
  }
  return most;
}

}  // namespace

void join_forwards(const trace::Trace& trace, const EventLists& lists, FsdpLog& log) {
  std::vector<Nanoseconds> steps;
  const auto is_step = [](std::string_view name) { return parse_profiler_step(name).has_value(); };
  lists.for_annotations_named(trace, is_step,
                              [&](uint32_t i) { steps.push_back(trace.events[i].start); });
  std::sort(steps.begin(), steps.end());
  const auto step_of = [&steps](Nanoseconds time) {
    return std::upper_bound(steps.begin(), steps.end(), time) - steps.begin();
  };
  const std::vector<RootForward> forwards = root_forwards(log);
  const bool may_join = log.source == FsdpSource::kFsdp2 && !steps.empty();
  std::vector<uint32_t> pass_of(forwards.size());
  std::vector<bool> grad(forwards.size(), true);
  for (size_t i = forwards.size(); i-- > 0;) {
    const bool joins = may_join && i + 1 < forwards.size() && !forwards[i].has_backward &&
                       step_of(forwards[i].start) == step_of(forwards[i + 1].start) &&
                       forwards[pass_of[i + 1]].has_backward;
    pass_of[i] = joins ? pass_of[i + 1] : static_cast<uint32_t>(i);
    grad[i] = joins ? static_cast<int>(pass_of[i] - i) < differentiated(forwards[pass_of[i]])
                    : forwards[i].has_backward;
  }
  for (FsdpEvent& e : log.events) {
    e.grad = grad[e.forward];
    e.pass = pass_of[e.forward];
  }
  for (PrefetchRequest& each : log.prefetches) {
    each.pass = each.pass < pass_of.size() ? pass_of[each.pass] : each.pass;
  }
}

std::vector<Nanoseconds> training_passes(const FsdpLog& log) {
  std::map<uint32_t, std::pair<Nanoseconds, bool>> passes;  // begin; whether it has a backward
  for (const FsdpEvent& e : log.events) {                   // by start
    std::pair<Nanoseconds, bool>& pass =
        passes.try_emplace(e.pass, e.when.start, false).first->second;
    pass.second = pass.second || e.backward;
  }
  std::vector<Nanoseconds> out;
  for (const auto& [number, pass] : passes) {
    if (pass.second) {
      out.push_back(pass.first);
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

int64_t microbatches_of(std::span<const Nanoseconds> passes, std::span<const Interval> steps) {
  std::map<int64_t, int64_t> count;  // number of passes → steps
  for (const Interval& step : steps) {
    const auto begun = std::ranges::count_if(
        passes, [&step](Nanoseconds begin) { return step.start <= begin && begin < step.end; });
    count[begun] += begun > 0 ? 1 : 0;
  }
  const auto most = std::ranges::max_element(
      count, [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == count.end() || most->second == 0 ? 1 : most->first;
}

}  // namespace shardlens::analysis
