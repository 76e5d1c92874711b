#include "gui/model/lanes/residency.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace shardlens::gui {

using schedule::Op;

namespace {

// Finds until when the device is busy with what the host launched up to an instant.
class DeviceProgress {
 public:
  explicit DeviceProgress(const analysis::Timeline& timeline) {
    for (const analysis::DeviceEvent& event : timeline.device_events) {
      if (event.nature == analysis::Nature::kCompute) {
        ends_.emplace_back(event.launched, event.when.end);
      }
    }
    std::sort(ends_.begin(), ends_.end());
    for (size_t i = 1; i < ends_.size(); ++i) {
      ends_[i].second = std::max(ends_[i].second, ends_[i - 1].second);
    }
  }
  [[nodiscard]] Nanoseconds after(Nanoseconds host) const {
    const auto later =
        std::ranges::upper_bound(ends_, host, {}, &std::pair<Nanoseconds, Nanoseconds>::first);
    return later == ends_.begin() ? host : std::max(host, std::prev(later)->second);
  }

 private:
  std::vector<std::pair<Nanoseconds, Nanoseconds>> ends_;  // of launches: when, and the latest end
};

using AllGathers = std::map<std::string, std::vector<const analysis::Collective*>>;

// By unit, as the host issued them.
AllGathers all_gathers(const analysis::Timeline& timeline) {
  AllGathers out;
  for (const analysis::Collective& each : timeline.collectives) {
    if (each.kind == CollectiveKind::kAllGather && each.unit && each.issued) {
      out[timeline.units[*each.unit]].push_back(&each);
    }
  }
  for (auto& [unit, list] : out) {
    std::ranges::stable_sort(list, {}, [](const auto* each) { return *each->issued; });
  }
  return out;
}

}  // namespace

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

std::vector<Residency> on_device(std::vector<Residency> issued,
                                 const analysis::Timeline& timeline) {
  if (!timeline.device) {
    return issued;
  }
  const DeviceProgress progress(timeline);
  const AllGathers gathers = all_gathers(timeline);
  std::map<std::string, Nanoseconds> freed;  // when the unit's parameters were, the last time
  for (Residency& held : issued) {
    const analysis::Interval host = held.when;
    held.when.start = progress.after(host.start);
    held.usable = std::max(held.when.start, progress.after(held.usable));
    if (const auto of = gathers.find(held.unit); of != gathers.end()) {
      const auto gather = std::ranges::lower_bound(of->second, host.start, {},
                                                   [](const auto* each) { return *each->issued; });
      if (gather != of->second.end() && *(*gather)->issued < host.end) {
        held.when.start = (*gather)->when.start;
        held.usable = std::max((*gather)->when.end, held.usable);
      }
    }
    // Where a part of the trace is missing, the order still holds.
    const auto before = freed.find(held.unit);
    held.when.start =
        std::max(held.when.start, before == freed.end() ? host.start : before->second);
    held.usable = std::max(held.usable, held.when.start);
    held.when.end = std::max(progress.after(host.end), held.usable + 1);
    freed[held.unit] = held.when.end;
  }
  std::ranges::stable_sort(issued, {}, [](const Residency& each) { return each.when.start; });
  return issued;
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
