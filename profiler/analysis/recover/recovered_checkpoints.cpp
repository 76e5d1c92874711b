#include "profiler/analysis/recover/recovered_checkpoints.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "profiler/analysis/events/intervals.h"
#include "profiler/analysis/events/names.h"
#include "profiler/analysis/fsdp_log/ddp_log.h"

namespace shardlens::analysis {
namespace {

using trace::Trace;

struct Counts {
  int64_t forward = 0, again = 0;  // numbered operators
};

std::optional<Interval> window_of(const FsdpLog& log, uint32_t pass) {
  std::optional<Interval> out;
  for (const FsdpEvent& e : log.events) {
    if (e.pass == pass) {
      out = out ? Interval{std::min(out->start, e.when.start), std::max(out->end, e.when.end)}
                : e.when;
    }
  }
  return out;
}

// FSDP's own work on each track. Autograd numbers operators in it too: views of FSDP1's flat
// parameter, which its hooks make anew where the parameter is not sharded.
std::unordered_map<uint32_t, IntervalSet> own_work(const FsdpLog& log, uint32_t pass) {
  std::unordered_map<uint32_t, std::vector<Interval>> calls;
  for (const FsdpEvent& e : log.events) {
    if (e.pass == pass) {
      calls[e.track].push_back(e.when);
    }
  }
  std::unordered_map<uint32_t, IntervalSet> out;
  for (auto& [track, intervals] : calls) {
    out[track] = union_of(std::move(intervals));
  }
  return out;
}

// By unit, inner units first.
std::vector<uint32_t> inner_first(const FsdpLog& log) {
  std::vector<std::pair<int, uint32_t>> depths;
  for (uint32_t unit = 0; unit < log.units.size(); ++unit) {
    int depth = 0;
    for (auto at = log.units[unit].parent; at; at = log.units[*at].parent) {
      --depth;
    }
    depths.emplace_back(depth, unit);
  }
  std::sort(depths.begin(), depths.end());
  std::vector<uint32_t> out;
  for (const auto& [depth, unit] : depths) {
    out.push_back(unit);
  }
  return out;
}

// Whether a unit around this one is in the set.
bool is_inside(const FsdpLog& log, const std::set<uint32_t>& units, uint32_t unit) {
  for (std::optional<uint32_t> at = log.units[unit].parent; at; at = log.units[*at].parent) {
    if (units.contains(*at)) {
      return true;
    }
  }
  return false;
}

}  // namespace

RecoveredCheckpoints recover_checkpoints(const Trace& trace,
                                         const FsdpLog& log,
                                         const Sections& sections,
                                         uint32_t pass) {
  std::map<uint32_t, Counts> counts;
  const Interval window = window_of(log, pass).value_or(Interval{});
  const std::unordered_map<uint32_t, IntervalSet> own = own_work(log, pass);
  for (const trace::Event& event : trace.events) {
    if (event.category != trace::Category::kCpuOp || event.start < window.start ||
        event.start >= window.end || !is_operator(trace.name(event))) {
      continue;
    }
    const Owner owner = sections.at(event.track, event.start);
    const bool inside = owner.section == Section::kForward || owner.section == Section::kBackward;
    const auto of_fsdp = own.find(event.track);
    if (inside && owner.unit != kNoUnit && sequence_of(trace, event) >= 0 &&
        !(of_fsdp != own.end() && contains(of_fsdp->second, event.start))) {
      Counts& unit = counts[owner.unit];
      ++(owner.section == Section::kForward ? unit.forward : unit.again);
    }
  }
  std::set<uint32_t> whole, parts;
  for (const uint32_t unit : inner_first(log)) {
    const Counts each = counts[unit];
    if (const std::optional<uint32_t> parent = log.units[unit].parent;
        parent && each.again > each.forward) {
      counts[*parent].again += each.again - each.forward;
    }
    if (each.again > 0) {
      // The root's own operators are around its units, which would run again, too.
      const bool all = 2 * each.again >= each.forward && !log.units[unit].fqn.empty();
      (all ? whole : parts).insert(unit);
    }
  }
  for (const FsdpEvent& e : log.events) {
    if (e.pass == pass && e.call == FsdpCall::kPreForward && e.backward) {
      whole.insert(e.unit);
      parts.erase(e.unit);
    }
  }
  RecoveredCheckpoints out;
  for (const uint32_t unit : whole) {
    if (!is_inside(log, whole, unit)) {
      out.units.push_back(unit);
    }
  }
  out.parts.assign(parts.begin(), parts.end());
  return out;
}

}  // namespace shardlens::analysis
