#include "gui/model/run/residency.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace shardlens::gui {

using schedule::Op;

std::vector<IssuedAction> issued_actions(const trace::Trace& trace) {
  std::vector<IssuedAction> out;
  for (size_t i = 0; i < trace.events.size() && !trace.actions.empty(); ++i) {
    const trace::Event& event = trace.events[i];
    const trace::ActionArgs* args = trace.action(event);
    if (args != nullptr && args->action.unit < trace.units.size()) {
      out.push_back({trace.units[args->action.unit], args->action.op, event.start, args->seq});
    }
  }
  for (const trace::RecordedAction& each : trace.recorded_actions) {
    out.push_back({each.unit, each.op, each.start, each.seq});
  }
  std::sort(out.begin(), out.end(), [](const IssuedAction& a, const IssuedAction& b) {
    return std::tie(a.start, a.seq) < std::tie(b.start, b.seq);
  });
  return out;
}

std::vector<Residency> residencies_of(const trace::Trace& trace) {
  struct Open {
    std::optional<Nanoseconds> issued, usable;
  };
  std::vector<Residency> out;
  std::map<std::string, Open> open;
  for (const IssuedAction& action : issued_actions(trace)) {
    Open& of = open[action.unit];
    if (action.op == Op::kAllGather && !of.usable) {
      of.issued = action.start;  // again, if an earlier one was dropped
    } else if (action.op == Op::kUseFull && !of.usable) {
      of.usable = action.start;
    } else if (action.op == Op::kUseShard && of.usable) {
      out.push_back({action.unit, {of.issued.value_or(*of.usable), action.start}, *of.usable});
      of = {};
    }
  }
  std::erase_if(open, [](const auto& each) { return !each.second.usable; });
  Nanoseconds last = 0;
  for (size_t i = 0; i < trace.events.size() && !open.empty(); ++i) {
    last = std::max(last, trace.events[i].end());
  }
  for (const auto& [unit, of] : open) {
    if (*of.usable < last) {
      out.push_back({unit, {of.issued.value_or(*of.usable), last}, *of.usable});
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const Residency& a, const Residency& b) {
    return a.when.start < b.when.start;
  });
  return out;
}

std::vector<std::string> gathered_at(const std::vector<Residency>& residencies,
                                     Nanoseconds instant) {
  std::vector<std::string> out;
  for (const Residency& each : residencies) {
    if (each.usable <= instant && instant < each.when.end) {
      out.push_back(each.unit);
    }
  }
  return out;
}

}  // namespace shardlens::gui
