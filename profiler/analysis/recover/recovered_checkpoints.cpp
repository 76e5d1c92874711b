#include "profiler/analysis/recover/recovered_checkpoints.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
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
// parameter, which its hooks make again where the parameter is not sharded.
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

// "layers.0" of "layers.0._checkpoint_wrapped_module.mlp": of a unit's name in ranges of PyTorch's
// FSDP2, the outermost module in a checkpoint_wrapper; of several names with ", " between them,
// that of each.
void add_wrapped(std::string_view fqn, std::vector<std::string>& out) {
  constexpr std::string_view kWrapped = "_checkpoint_wrapped_module", kNext = ", ";
  while (!fqn.empty()) {
    const size_t end = std::min(fqn.find(kNext), fqn.size());
    const std::string_view one = fqn.substr(0, end);
    if (const size_t at = one.find(kWrapped); at != std::string_view::npos) {
      std::string module = without_wrappers(one.substr(0, at == 0 ? 0 : at - 1));
      if (std::ranges::find(out, module) == out.end()) {
        out.push_back(std::move(module));
      }
    }
    fqn.remove_prefix(std::min(end + kNext.size(), fqn.size()));
  }
}

std::vector<std::string> wrapped_modules(const Trace& trace,
                                         const FsdpLog& log,
                                         const Interval& window) {
  std::vector<std::string> out;
  for (const trace::Event& event : trace.events) {
    if (log.source == FsdpSource::kFsdp2 && event.category == trace::Category::kUserAnnotation &&
        event.start >= window.start && event.start < window.end) {
      if (const auto range = parse_fsdp_range(trace.name(event)); range && range->fqn) {
        add_wrapped(*range->fqn, out);
      }
    }
  }
  return out;
}

bool is_in(const std::string& module, const std::string& around) {
  return around.empty() || module == around || module.starts_with(around + ".");
}

}  // namespace

RecoveredCheckpoints recover_checkpoints(const Trace& trace,
                                         const FsdpLog& log,
                                         const Sections& sections,
                                         uint32_t pass) {
  RecoveredCheckpoints out;
  std::map<uint32_t, Counts> counts;
  const Interval window = window_of(log, pass).value_or(Interval{});
  const std::unordered_map<uint32_t, IntervalSet> own = own_work(log, pass);
  for (const trace::Event& event : trace.events) {
    if (event.category != trace::Category::kCpuOp || event.start < window.start ||
        event.start >= window.end || !is_operator(trace.name(event))) {
      continue;
    }
    const bool numbered = sequence_of(trace, event) >= 0;
    out.numbered = out.numbered || numbered;
    const Owner owner = sections.at(event.track, event.start);
    const bool inside = owner.section == Section::kForward || owner.section == Section::kBackward;
    const auto of_fsdp = own.find(event.track);
    if (inside && owner.unit != kNoUnit && numbered &&
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
  out.modules = wrapped_modules(trace, log, window);
  const auto named = [&](uint32_t unit) {
    return std::ranges::any_of(
        out.modules, [&](const std::string& module) { return is_in(log.units[unit].fqn, module); });
  };
  for (const uint32_t unit : whole) {
    if (!is_inside(log, whole, unit) && !named(unit)) {
      out.units.push_back(unit);
    }
  }
  for (const uint32_t unit : parts) {
    if (!named(unit) && std::ranges::none_of(out.modules, [&](const std::string& module) {
          return is_in(module, log.units[unit].fqn);
        })) {
      out.parts.push_back(unit);
    }
  }
  return out;
}

}  // namespace shardlens::analysis
