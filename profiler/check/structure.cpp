#include "profiler/check/structure.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "profiler/analysis/figures/group_figures.h"
#include "profiler/analysis/order/observed_order.h"

namespace shardlens::check {
namespace {

using analysis::Collective;
using analysis::ObservedEvent;
using analysis::Timeline;

StreamItem item_of(const trace::Trace& trace, const Timeline& timeline, const Collective& c) {
  StreamItem item;
  item.unit = c.unit ? timeline.units[*c.unit] : fmt::format("<{}>", name_of(c.section));
  item.part = c.part != analysis::UnitPart::kOther ? std::string(name_of(c.part))
              : c.kind                             ? collective_label(trace, c)
                                                   : "unknown";
  item.bytes = c.bytes;
  return item;
}

// Gloo runs each collective on any thread of its pool, several at the same time, so threads and
// starts say nothing about the program: all are one stream, in the order of their calls.
constexpr uint32_t kPool = trace::kNoIndex;

bool is_pooled(const Timeline& timeline, const Collective& c) {
  return !timeline.device && c.args == trace::kNoIndex && c.issuer != trace::kNoIndex;
}

// The collectives in the order of their streams.
std::vector<const Collective*> in_order(const trace::Trace& trace, const Timeline& timeline) {
  std::vector<const Collective*> out;
  for (const Collective& c : timeline.collectives) {
    out.push_back(&c);
  }
  const auto when = [&](const Collective* c) {
    return is_pooled(timeline, *c) ? trace.events[c->issuer].start : c->when.start;
  };
  std::stable_sort(out.begin(), out.end(),
                   [&](const Collective* a, const Collective* b) { return when(a) < when(b); });
  return out;
}

// Steps are sorted by start, on the host and on the device.
const analysis::Step* step_of(const Timeline& timeline, const Collective& c) {
  const Nanoseconds at = c.issued.value_or(c.when.start);
  const auto window = [&](const analysis::Step& step) -> const analysis::Interval& {
    return c.issued ? step.host : step.window;
  };
  const auto after =
      std::partition_point(timeline.steps.begin(), timeline.steps.end(),
                           [&](const analysis::Step& step) { return window(step).start <= at; });
  return after != timeline.steps.begin() && at < window(*std::prev(after)).end ? &*std::prev(after)
                                                                               : nullptr;
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

// By key and number of messages: the different lists of their sizes, each sorted.
using SizesByKey = std::map<RankStructure::Key, std::map<size_t, std::set<std::vector<Bytes>>>>;

void add_sizes(const StepStructure& step, SizesByKey& sizes) {
  std::map<RankStructure::Key, std::vector<Bytes>> here;
  for (const auto& stream : step.streams) {
    for (const StreamItem& item : stream) {
      here[{item.unit, item.part}].push_back(item.bytes);
    }
  }
  for (auto& [key, list] : here) {
    std::sort(list.begin(), list.end());
    auto& seen = sizes[key][list.size()];
    if (seen.size() < 2) {
      seen.insert(std::move(list));
    }
  }
}

std::set<RankStructure::Key> keys_that_vary(const SizesByKey& sizes) {
  std::set<RankStructure::Key> out;
  for (const auto& [key, counts] : sizes) {
    if (std::any_of(counts.begin(), counts.end(),
                    [](const auto& each) { return each.second.size() > 1; })) {
      out.insert(key);
    }
  }
  return out;
}

double bytes_of(const StepStructure& step, const RankStructure::Key& key) {
  double sum = 0;
  for (const auto& stream : step.streams) {
    for (const StreamItem& item : stream) {
      sum +=
          item.unit == key.first && item.part == key.second ? static_cast<double>(item.bytes) : 0;
    }
  }
  return sum;
}

}  // namespace

std::set<RankStructure::Key> varying_keys(const std::vector<const RankStructure*>& runs) {
  SizesByKey sizes;
  std::set<RankStructure::Key> out;
  for (const RankStructure* run : runs) {
    for (const RankStructure::Variant& variant : run->variants) {
      add_sizes(variant.structure, sizes);
    }
    for (const auto& [key, bytes] : run->varying) {
      out.insert(key);
    }
  }
  out.merge(keys_that_vary(sizes));
  return out;
}

StepStructure without_sizes(StepStructure step, const std::set<RankStructure::Key>& keys) {
  if (keys.empty()) {
    return step;
  }
  for (auto& stream : step.streams) {
    for (StreamItem& item : stream) {
      if (keys.contains({item.unit, item.part})) {
        item.bytes = kVaries;
        if (item.part.starts_with("all_gather")) {
          step.unsharded_peak = kVaries;
        }
      }
    }
  }
  std::sort(step.streams.begin(), step.streams.end());
  return step;
}

void add_bytes_of_steps(const RankStructure& run, const RankStructure::Key& key, Sample& bytes) {
  if (const auto varying = run.varying.find(key); varying != run.varying.end()) {
    for (const double step : varying->second) {
      ++bytes[step];
    }
    return;
  }
  for (const RankStructure::Variant& variant : run.variants) {
    if (variant.steps > 0) {
      bytes[bytes_of(variant.structure, key)] += variant.steps;
    }
  }
}

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
  for (const Collective* c : in_order(trace, timeline)) {
    const analysis::Step* step = step_of(timeline, *c);
    if (step != nullptr && found.contains(step->number)) {
      const uint32_t stream = is_pooled(timeline, *c) ? kPool : c->track;
      streams[step->number][stream].push_back(item_of(trace, timeline, *c));
    }
  }
  for (auto& [number, tracks] : streams) {
    for (auto& [track, items] : tracks) {
      found[number].streams.push_back(std::move(items));
    }
    std::sort(found[number].streams.begin(), found[number].streams.end());
  }
  for (const analysis::ObservedOrder& order :
       observed_orders(trace, timeline.lists, timeline.fsdp)) {
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
  SizesByKey sizes;
  for (const auto& [number, step] : found) {
    add_sizes(step, sizes);
  }
  const std::set<RankStructure::Key> varying = keys_that_vary(sizes);
  for (const RankStructure::Key& key : varying) {
    std::vector<double>& bytes = out.varying[key];
    for (const auto& [number, step] : found) {
      bytes.push_back(bytes_of(step, key));
    }
  }
  std::map<StepStructure, int64_t> counts;
  for (auto& [number, step] : found) {
    step.unsharded_peak = unsharded_peak(step);
    ++counts[without_sizes(std::move(step), varying)];
  }
  for (auto& [structure, count] : counts) {
    out.variants.push_back({structure, count});
  }
  std::stable_sort(out.variants.begin(), out.variants.end(),
                   [](const auto& a, const auto& b) { return a.steps > b.steps; });
  return out;
}

}  // namespace shardlens::check
