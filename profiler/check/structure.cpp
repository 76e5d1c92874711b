#include "profiler/check/structure.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "profiler/analysis/order/observed_order.h"

namespace shardlens::check {
namespace {

using analysis::Collective;
using analysis::ObservedEvent;
using analysis::Timeline;

StreamItem item_of(const Timeline& timeline, const Collective& c) {
  StreamItem item;
  item.unit = c.unit ? timeline.units[*c.unit] : fmt::format("<{}>", name_of(c.section));
  item.part = c.part != analysis::UnitPart::kOther ? std::string(name_of(c.part))
              : c.kind                             ? std::string(name_of(*c.kind))
                                                   : "unknown";
  item.bytes = c.bytes;
  return item;
}

const analysis::Step* step_of(const Timeline& timeline, const Collective& c) {
  for (const analysis::Step& step : timeline.steps) {
    const analysis::Interval& window = c.issued ? step.host : step.window;
    const Nanoseconds at = c.issued.value_or(c.when.start);
    if (window.start <= at && at < window.end) {
      return &step;
    }
  }
  return nullptr;
}

Bytes unsharded_peak(const StepStructure& step) {
  std::map<std::string, Bytes> sizes, held;
  for (const auto& stream : step.streams) {
    for (const StreamItem& item : stream) {
      if (item.part.starts_with("all_gather")) {
        sizes[item.unit] = std::max(sizes[item.unit], item.bytes);
      }
    }
  }
  Bytes now = 0, peak = 0;
  for (const HostItem& item : step.order) {
    Bytes& unit = held[item.unit];
    const Bytes wanted = item.what == "unshard"   ? sizes[item.unit]
                         : item.what == "reshard" ? 0
                                                  : unit;
    now += wanted - unit;
    unit = wanted;
    peak = std::max(peak, now);
  }
  return peak;
}

}  // namespace

std::string unit_name(const std::string& fqn) {
  if (fqn.empty()) {
    return "(root)";
  }
  return fqn.find(", ") == std::string::npos ? fqn : fmt::format("[{}]", fqn);
}

RankStructure structure_of(const trace::Trace& trace,
                           const Timeline& timeline,
                           const std::vector<int64_t>& steps) {
  std::map<int64_t, StepStructure> found;
  for (const int64_t step : steps) {
    found[step];
  }
  std::map<int64_t, std::map<uint32_t, std::vector<StreamItem>>> streams;  // by step and track
  for (const Collective& c : timeline.collectives) {
    const analysis::Step* step = step_of(timeline, c);
    if (step != nullptr && found.contains(step->number)) {
      streams[step->number][c.track].push_back(item_of(timeline, c));
    }
  }
  for (auto& [number, tracks] : streams) {
    for (auto& [track, items] : tracks) {
      found[number].streams.push_back(std::move(items));
    }
    std::sort(found[number].streams.begin(), found[number].streams.end());
  }
  for (const analysis::ObservedOrder& order : observed_orders(trace, timeline.fsdp)) {
    for (const int64_t number : order.steps) {
      const auto step = found.find(number);
      if (step == found.end()) {
        continue;
      }
      for (const ObservedEvent& e : order.events) {
        const bool unshards = e.what == ObservedEvent::What::kUnshard;
        step->second.order.push_back({std::string(name_of(e.what)), timeline.fsdp.units[e.unit].fqn,
                                      e.backward, timeline.fsdp.units[e.hook_unit].fqn,
                                      unshards ? std::string(name_of(e.by)) : ""});
      }
    }
  }
  RankStructure out;
  out.rank = trace.metadata.rank.value_or(0);
  std::map<StepStructure, int64_t> counts;
  for (auto& [number, step] : found) {
    step.unsharded_peak = unsharded_peak(step);
    ++counts[std::move(step)];
  }
  for (auto& [structure, count] : counts) {
    out.variants.push_back({structure, count});
  }
  std::stable_sort(out.variants.begin(), out.variants.end(),
                   [](const auto& a, const auto& b) { return a.steps > b.steps; });
  return out;
}

}  // namespace shardlens::check
