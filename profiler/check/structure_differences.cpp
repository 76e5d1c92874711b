#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "profiler/check/structure.h"

namespace shardlens::check {
namespace {

using Key = std::pair<std::string, std::string>;  // unit, part

std::string bytes_text(Bytes bytes) {
  return bytes == 0         ? "unknown size"
         : bytes == kVaries ? "a size that varies"
                            : fmt::format("{} bytes", bytes);
}

// Names such as "<loss>" are used for work of no unit.
bool is_unit(const std::string& name) {
  return !name.starts_with('<');
}

std::set<std::string> units_of(const StepStructure& step) {
  std::set<std::string> units;
  for (const auto& stream : step.streams) {
    for (const StreamItem& item : stream) {
      if (is_unit(item.unit)) {
        units.insert(item.unit);
      }
    }
  }
  for (const HostItem& item : step.order) {
    units.insert(item.unit);
  }
  return units;
}

std::map<Key, std::vector<Bytes>> sizes_of(const StepStructure& step) {
  std::map<Key, std::vector<Bytes>> sizes;
  for (const auto& stream : step.streams) {
    for (const StreamItem& item : stream) {
      sizes[{item.unit, item.part}].push_back(item.bytes);
    }
  }
  for (auto& [key, list] : sizes) {
    std::sort(list.begin(), list.end());
  }
  return sizes;
}

std::string unit_text(const StepStructure& step, const std::string& unit) {
  std::vector<std::string> parts;
  for (const auto& [key, sizes] : sizes_of(step)) {
    if (key.first == unit) {
      parts.push_back(
          fmt::format("{} × {} of {}", sizes.size(), key.second, bytes_text(sizes.back())));
    }
  }
  return parts.empty() ? "no collectives" : fmt::format("{}", fmt::join(parts, ", "));
}

// "all_gather" for all_gather_forward and all_gather_backward; otherwise `part`.
std::string kind_of(const std::string& part) {
  return part.starts_with("all_gather") ? "all_gather" : part;
}

std::set<std::string> kinds_of(const StepStructure& step) {
  std::set<std::string> kinds;
  for (const auto& stream : step.streams) {
    for (const StreamItem& item : stream) {
      kinds.insert(kind_of(item.part));
    }
  }
  return kinds;
}

// The kinds in a stream, limited to `kinds`, those that both sides have.
std::set<std::string> kinds_beside(const std::vector<StreamItem>& stream,
                                   const std::set<std::string>& kinds) {
  std::set<std::string> out;
  for (const StreamItem& item : stream) {
    if (kinds.contains(kind_of(item.part))) {
      out.insert(kind_of(item.part));
    }
  }
  return out;
}

std::map<std::string, std::set<std::string>> streams_by_kind(const StepStructure& step,
                                                             const std::set<std::string>& kinds) {
  std::map<std::string, std::set<std::string>> out;
  for (const auto& stream : step.streams) {
    const std::set<std::string> beside = kinds_beside(stream, kinds);
    for (const std::string& kind : beside) {
      out[kind].insert(fmt::format("a stream of {}", fmt::join(beside, ", ")));
    }
  }
  return out;
}

// The positions in `found` that must move to make it increasing: all that are not in its increasing
// subsequence with the greatest weight. `weights` are by position.
std::vector<size_t> moved(const std::vector<size_t>& found, const std::vector<int64_t>& weights) {
  struct Best {
    int64_t weight = 0;
    size_t last = SIZE_MAX;
  };
  const size_t n = found.size();
  std::vector<Best> tree(n + 1);  // Fenwick tree of prefix maxima by value
  std::vector<size_t> before(n, SIZE_MAX);
  Best best;
  for (size_t i = 0; i < n; ++i) {
    Best prefix;
    for (size_t at = found[i]; at > 0; at &= at - 1) {
      prefix = tree[at].weight > prefix.weight ? tree[at] : prefix;
    }
    before[i] = prefix.last;
    const Best here{prefix.weight + weights[i], i};
    for (size_t at = found[i] + 1; at <= n; at += at & (~at + 1)) {
      tree[at] = here.weight > tree[at].weight ? here : tree[at];
    }
    best = here.weight > best.weight ? here : best;
  }
  std::set<size_t> stays;
  for (size_t at = best.last; at != SIZE_MAX; at = before[at]) {
    stays.insert(at);
  }
  std::vector<size_t> out;
  for (size_t i = 0; i < n; ++i) {
    if (!stays.contains(i)) {
      out.push_back(i);
    }
  }
  return out;
}

// An item of an order. The comparison reports items with small weights as moved rather than those
// with large weights.
struct Placed {
  std::string unit, what;
  int64_t weight = 1;
};

std::string text_of(const Placed& item) {
  return fmt::format("{} ({})", item.what, unit_name(item.unit));
}

std::string place_text(const std::vector<Placed>& order, size_t at) {
  return at == 0 ? fmt::format("{} first", order[at].what)
                 : fmt::format("{} after {}", order[at].what, text_of(order[at - 1]));
}

void add_once(std::vector<StructuralDifference>& out, StructuralDifference difference) {
  const auto same = std::find_if(out.begin(), out.end(), [&](const StructuralDifference& d) {
    return d.kind == difference.kind && d.unit == difference.unit;
  });
  if (same == out.end()) {
    out.push_back(std::move(difference));
  }
}

// Reports items that both sides have (n-th with n-th of the same name) but in a different order.
void compare_orders(const std::vector<Placed>& baseline,
                    const std::vector<Placed>& candidate,
                    std::vector<StructuralDifference>& out) {
  std::map<std::tuple<std::string, std::string, int>, size_t> places;
  std::map<std::pair<std::string, std::string>, int> seen;
  for (size_t i = 0; i < baseline.size(); ++i) {
    places[{baseline[i].unit, baseline[i].what, seen[{baseline[i].unit, baseline[i].what}]++}] = i;
  }
  seen.clear();
  std::vector<size_t> in_baseline, in_candidate;
  for (size_t i = 0; i < candidate.size(); ++i) {
    const Placed& item = candidate[i];
    if (const auto at = places.find({item.unit, item.what, seen[{item.unit, item.what}]++});
        at != places.end()) {
      in_baseline.push_back(at->second);
      in_candidate.push_back(i);
    }
  }
  // The ranks 0 … n-1 of the positions in the baseline.
  std::vector<size_t> sorted = in_baseline;
  std::sort(sorted.begin(), sorted.end());
  std::vector<size_t> found;
  std::vector<int64_t> weights;
  for (size_t i = 0; i < in_baseline.size(); ++i) {
    found.push_back(static_cast<size_t>(
        std::lower_bound(sorted.begin(), sorted.end(), in_baseline[i]) - sorted.begin()));
    weights.push_back(candidate[in_candidate[i]].weight);
  }
  for (const size_t i : moved(found, weights)) {
    add_once(out, {"order",
                   candidate[in_candidate[i]].unit,
                   place_text(baseline, in_baseline[i]),
                   place_text(candidate, in_candidate[i]),
                   {}});
  }
}

using PrefetchKey = std::pair<std::string, bool>;  // unit, for backward
using Prefetches = std::map<PrefetchKey, std::vector<std::string>>;

Prefetches prefetches_of(const StepStructure& step) {
  Prefetches out;
  for (const HostItem& item : step.order) {
    if (item.what == "unshard") {
      out[{item.unit, item.backward}].push_back(
          item.by == "own" ? "not prefetched"
                           : fmt::format("by {} from {}", item.by, unit_name(item.hook_unit)));
    }
  }
  return out;
}

// Reports all-gathers that are now issued by a different hook. Returns their keys: this explains
// their new positions in the order.
std::set<PrefetchKey> compare_prefetches(const StepStructure& baseline,
                                         const StepStructure& candidate,
                                         std::vector<StructuralDifference>& out) {
  std::set<PrefetchKey> changed;
  const Prefetches before = prefetches_of(baseline), after = prefetches_of(candidate);
  for (const HostItem& item : baseline.order) {  // reported in the order of the baseline's step
    const PrefetchKey key{item.unit, item.backward};
    const auto a = before.find(key), b = after.find(key);
    if (a == before.end() || b == after.end() || a->second == b->second ||
        !changed.insert(key).second) {
      continue;
    }
    const auto text = [&](const std::vector<std::string>& ways) {
      return fmt::format("all_gather for {} {}", key.second ? "backward" : "forward",
                         fmt::join(ways, ", "));
    };
    out.push_back({"prefetch", item.unit, text(a->second), text(b->second), {}});
  }
  return changed;
}

std::vector<Placed> placed(const std::vector<HostItem>& order,
                           const std::set<PrefetchKey>& explained) {
  // If two items swapped places, the reduction is reported rather than the all-gather.
  constexpr int64_t kUnshard = 1001, kOther = 1000;
  std::vector<Placed> out;
  for (const HostItem& item : order) {
    const bool unshards = item.what == "unshard";
    if (!unshards || !explained.contains({item.unit, item.backward})) {
      out.push_back({item.unit,
                     (unshards ? "all_gather" : item.what) +
                         (item.backward && unshards ? " for backward" : ""),
                     unshards ? kUnshard : kOther});
    }
  }
  return out;
}

std::vector<Placed> placed(const std::vector<StreamItem>& stream) {
  std::vector<Placed> out;
  for (const StreamItem& item : stream) {
    out.push_back({item.unit, item.part, item.part.starts_with("all_gather") ? 1001 : 1000});
  }
  return out;
}

void compare_streams(const StepStructure& baseline,
                     const StepStructure& candidate,
                     bool same_units,
                     std::vector<StructuralDifference>& streams,
                     std::vector<StructuralDifference>& order) {
  std::set<std::string> kinds;
  const std::set<std::string> before = kinds_of(baseline), after = kinds_of(candidate);
  std::set_intersection(before.begin(), before.end(), after.begin(), after.end(),
                        std::inserter(kinds, kinds.end()));
  const auto a = streams_by_kind(baseline, kinds), b = streams_by_kind(candidate, kinds);
  for (const auto& [kind, labels] : a) {
    if (labels != b.at(kind)) {
      streams.push_back({"stream",
                         "",
                         fmt::format("{} in {}", kind, fmt::join(labels, " and ")),
                         fmt::format("{} in {}", kind, fmt::join(b.at(kind), " and ")),
                         {}});
    }
  }
  if (!same_units || !streams.empty()) {
    return;
  }
  // Compare the n-th streams with the same kinds on both sides.
  std::map<std::set<std::string>, std::vector<const std::vector<StreamItem>*>> others;
  for (const auto& stream : baseline.streams) {
    others[kinds_beside(stream, kinds)].push_back(&stream);
  }
  std::map<std::set<std::string>, size_t> next;
  for (const auto& stream : candidate.streams) {
    const std::set<std::string> beside = kinds_beside(stream, kinds);
    const size_t n = next[beside]++;
    if (const auto& same = others[beside]; n < same.size()) {
      compare_orders(placed(*same[n]), placed(stream), order);
    }
  }
}

}  // namespace

std::vector<StructuralDifference> differences(const StepStructure& baseline,
                                              const StepStructure& candidate) {
  std::vector<StructuralDifference> units, counts, bytes, streams, order, out;
  const std::set<std::string> before = units_of(baseline), after = units_of(candidate);
  for (const std::string& unit : before) {
    if (!after.contains(unit)) {
      units.push_back({"unit", unit, unit_text(baseline, unit), "absent", {}});
    }
  }
  for (const std::string& unit : after) {
    if (!before.contains(unit)) {
      units.push_back({"unit", unit, "absent", unit_text(candidate, unit), {}});
    }
  }
  auto sizes = sizes_of(baseline), others = sizes_of(candidate);
  std::set<Key> keys;
  for (const auto* side : {&sizes, &others}) {
    for (const auto& [key, unused] : *side) {
      if (!is_unit(key.first) || (before.contains(key.first) && after.contains(key.first))) {
        keys.insert(key);
      }
    }
  }
  for (const Key& key : keys) {
    const auto &a = sizes[key], &b = others[key];
    if (a.size() != b.size()) {
      counts.push_back({"count",
                        key.first,
                        fmt::format("{} × {}", a.size(), key.second),
                        fmt::format("{} × {}", b.size(), key.second),
                        {}});
    } else if (a != b) {
      const auto text = [&](const std::vector<Bytes>& list) {
        return list.front() == kVaries
                   ? fmt::format("{} of a size that varies", key.second)
                   : fmt::format("{} of {} bytes", key.second, fmt::join(list, ", "));
      };
      bytes.push_back({"bytes", key.first, text(a), text(b), {}});
    }
  }
  out = std::move(units);
  const bool same_units = out.empty();
  if (same_units && !baseline.order.empty() && !candidate.order.empty()) {
    const std::set<PrefetchKey> explained = compare_prefetches(baseline, candidate, out);
    compare_orders(placed(baseline.order, explained), placed(candidate.order, explained), order);
  }
  // If prefetches changed, the positions of their all-gathers in the stream changed too.
  const bool host_order_tells = !out.empty() || !order.empty();
  compare_streams(baseline, candidate, same_units && !host_order_tells, streams, order);
  for (auto* list : {&counts, &bytes, &streams, &order}) {
    std::move(list->begin(), list->end(), std::back_inserter(out));
  }
  const bool peaks_known =
      baseline.unsharded_peak != kVaries && candidate.unsharded_peak != kVaries;
  if (peaks_known && baseline.unsharded_peak != candidate.unsharded_peak) {
    out.push_back({"unsharded_bytes",
                   "",
                   bytes_text(baseline.unsharded_peak) + " unsharded at once",
                   bytes_text(candidate.unsharded_peak) + " unsharded at once",
                   {}});
  }
  return out;
}

}  // namespace shardlens::check
