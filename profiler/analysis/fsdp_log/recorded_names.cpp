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

std::vector<const RecordedAction*> recorded_gathers(const trace::Trace& trace) {
  std::vector<const RecordedAction*> out;
  for (const RecordedAction& action : trace.recorded_actions) {
    if (action.op == schedule::Op::kAllGather) {
      out.push_back(&action);
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const RecordedAction* a, const RecordedAction* b) {
    return a->start < b->start;
  });
  return out;
}

// The name that most all-gathers of each unit have; fewer names than units: some are not known.
std::map<uint32_t, std::string> names_of(const std::vector<const RecordedAction*>& gathers,
                                         const FsdpLog& log) {
  std::map<uint32_t, std::map<std::string, int>> votes;
  for (const FsdpEvent& e : log.events) {
    const auto after = std::partition_point(
        gathers.begin(), gathers.end(),
        [&e](const RecordedAction* action) { return action->start <= e.when.start; });
    if (e.call == FsdpCall::kUnshard && after != gathers.begin() &&
        e.when.start < (*std::prev(after))->end) {
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
  const std::vector<const RecordedAction*> gathers = recorded_gathers(trace);
  if (gathers.empty()) {
    return;
  }
  const std::map<uint32_t, std::string> names = names_of(gathers, log);
  // Assembled anew, because a log looks units up by the names with which they were added.
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
