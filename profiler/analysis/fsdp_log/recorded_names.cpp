#include "profiler/analysis/fsdp_log/recorded_names.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace shardlens::analysis {
namespace {

using trace::RecordedAction;

using Actions = std::vector<const RecordedAction*>;  // by start

bool is_reduction(schedule::Op op) {
  return op == schedule::Op::kReduceScatter || op == schedule::Op::kAllReduce;
}

Actions recorded(const trace::Trace& trace, bool reductions) {
  Actions out;
  for (const RecordedAction& action : trace.recorded_actions) {
    if (reductions ? is_reduction(action.op) : action.op == schedule::Op::kAllGather) {
      out.push_back(&action);
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const RecordedAction* a, const RecordedAction* b) {
    return a->start < b->start;
  });
  return out;
}

// The name that most of the actions around calls of each unit have; fewer names than units: some
// are not known.
std::map<uint32_t, std::string> names_of(const Actions& actions,
                                         FsdpCall call,
                                         const FsdpLog& log) {
  std::map<uint32_t, std::map<std::string, int>> votes;
  for (const FsdpEvent& e : log.events) {
    const auto after = std::partition_point(
        actions.begin(), actions.end(),
        [&e](const RecordedAction* action) { return action->start <= e.when.start; });
    if (e.call == call && after != actions.begin() && e.when.start < (*std::prev(after))->end) {
      ++votes[e.unit][(*std::prev(after))->unit];
    }
  }
  std::map<uint32_t, std::string> out;
  for (const auto& [unit, names] : votes) {
    out[unit] = std::ranges::max_element(names, [](const auto& a, const auto& b) {
                  return a.second < b.second;
                })->first;
  }
  return out;
}

}  // namespace

void name_units(const trace::Trace& trace, FsdpLog& log) {
  std::map<uint32_t, std::string> names = names_of(recorded(trace, false), FsdpCall::kUnshard, log);
  names.merge(names_of(recorded(trace, true), FsdpCall::kReduce, log));
  if (names.empty()) {
    return;
  }
  // Assembled again, because a log looks units up by the names with which they were added.
  FsdpLog named;
  std::set<std::string> taken;
  for (uint32_t unit = 0; unit < log.units.size(); ++unit) {
    const bool root = log.units[unit].fqn.empty();  // it may have no parameters to gather
    const auto found = names.find(unit);
    if (found == names.end() && !root) {
      return;
    }
    const std::string name = root ? "" : found->second;
    if (!taken.insert(name).second) {
      return;
    }
    named.units.push_back({name, log.units[unit].parent});
  }
  named.source = log.source;
  named.events = std::move(log.events);
  named.prefetches = std::move(log.prefetches);
  named.limiter_waits = std::move(log.limiter_waits);
  named.diagnostics = std::move(log.diagnostics);
  log = std::move(named);
}

}  // namespace shardlens::analysis
