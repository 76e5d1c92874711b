#include "profiler/analysis/overlap/group_figures.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shardlens::analysis {
namespace {

const trace::CollectiveArgs* args_of(const trace::Trace& trace, const Collective& c) {
  return c.args == trace::kNoIndex ? nullptr : &trace.collectives[c.args];
}

}  // namespace

std::string group_label(const trace::Trace& trace, const Collective& c) {
  const trace::CollectiveArgs* args = args_of(trace, c);
  const bool named = args != nullptr && args->group != trace::kEmptyString;
  const bool listed = c.listed_group != trace::kNoIndex;
  if (!named && !listed) {
    return "";
  }
  std::string description(named ? trace.strings.view(args->group_description) : "");
  if (description.empty() && listed) {
    description = trace.metadata.groups[c.listed_group].description;
  }
  return description.empty() || description == "undefined"
             ? "group " + (named ? std::string(trace.strings.view(args->group))
                                 : trace.metadata.groups[c.listed_group].name)
             : description;
}

std::string collective_label(const trace::Trace& trace, const Collective& c) {
  std::string_view name = c.kind ? name_of(*c.kind) : trace.name(trace.events[c.event]);
  if (!c.kind) {
    name = name.substr(0, name.find_first_of("<("));
  }
  const std::string group = group_label(trace, c);
  if (!group.empty()) {
    return fmt::format("{} ({})", name, group);
  }
  const bool is_name_of_part =
      name == name_of(UnitPart::kReduceScatter) || name == name_of(UnitPart::kAllReduce);
  return c.unit && is_name_of_part ? fmt::format("other {}", name) : std::string(name);
}

std::vector<GroupFigures> group_figures(const trace::Trace& trace,
                                        const Timeline& timeline,
                                        const Partition& partition,
                                        const IntervalSet& window) {
  // By name and ranks, or place in the trace's list.
  std::map<std::tuple<trace::StringId, trace::StringId, uint32_t>, size_t> index;
  std::vector<GroupFigures> groups;
  std::vector<UnionBuilder> busy;
  std::vector<std::string> numbers;
  for (size_t i = 0; i < timeline.collectives.size(); ++i) {
    const Collective& c = timeline.collectives[i];
    const Nanoseconds exposed = length_of(partition.exposed(i, window));
    const bool starts_here = contains(window, c.when.start);
    if (!starts_here && exposed == 0) {
      continue;
    }
    const trace::CollectiveArgs* args = args_of(trace, c);
    const bool named = args != nullptr && args->group != trace::kEmptyString;
    const bool listed = !named && c.listed_group != trace::kNoIndex;
    const auto [it, fresh] = index.try_emplace(
        named ? std::tuple(args->group, args->group_ranks, trace::kNoIndex)
              : std::tuple(trace::kEmptyString, trace::kEmptyString, c.listed_group),
        groups.size());
    if (fresh) {
      GroupFigures& made = groups.emplace_back();
      busy.emplace_back();
      made.name = group_label(trace, c);
      made.ranks =
          named ? std::string(trace.strings.view(args->group_ranks))
          : listed
              ? fmt::format("[{}]", fmt::join(trace.metadata.groups[c.listed_group].ranks, ", "))
              : "";
      numbers.emplace_back(named    ? std::string(trace.strings.view(args->group))
                           : listed ? trace.metadata.groups[c.listed_group].name
                                    : "");
    }
    GroupFigures& group = groups[it->second];
    group.size = named || listed ? std::max(group.size, c.ranks) : 0;
    group.count += starts_here ? 1 : 0;
    group.bytes += starts_here ? c.bytes : 0;
    group.exposed += exposed;
    busy[it->second].add(c.when);
  }
  std::map<std::string, int> same;
  for (const GroupFigures& group : groups) {
    ++same[group.name];
  }
  std::vector<IntervalSet> sets;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (same[groups[i].name] > 1) {
      groups[i].name += fmt::format(" {}", numbers[i]);
    }
    sets.push_back(intersect(busy[i].take(), window));
    groups[i].busy = length_of(sets.back());
    groups[i].under_compute = shared_length(sets.back(), timeline.compute);
  }
  std::vector<size_t> order(groups.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return groups[a].busy > groups[b].busy; });
  std::vector<GroupFigures> out;
  for (const size_t i : order) {
    out.push_back(std::move(groups[i]));
  }
  const size_t compared = std::min(out.size(), GroupFigures::kCompared);
  for (size_t i = 0; i < compared; ++i) {
    out[i].under.resize(compared, out[i].busy);
    for (size_t k = 0; k < i; ++k) {
      out[i].under[k] = out[k].under[i] = shared_length(sets[order[i]], sets[order[k]]);
    }
  }
  return out;
}

}  // namespace shardlens::analysis
