#include "profiler/analysis/figures/group_figures.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "profiler/analysis/timeline/communicator_of.h"

namespace shardlens::analysis {
namespace {

const trace::CollectiveArgs* args_of(const trace::Trace& trace, const Collective& c) {
  return c.args == trace::kNoIndex ? nullptr : &trace.collectives[c.args];
}

}  // namespace

std::string group_label(const trace::Trace& trace, const Collective& c) {
  const trace::CollectiveArgs* args = args_of(trace, c);
  const bool named = args != nullptr && args->group != trace::kEmptyString;
  if (!named && c.listed_group == trace::kNoIndex) {
    return "";
  }
  const std::string_view description = group_description(trace, c);
  return description.empty() || description == "undefined"
             ? "group " + (named ? std::string(trace.strings.view(args->group))
                                 : trace.metadata.groups[c.listed_group].name)
             : std::string(description);
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

WindowGroups window_groups(const trace::Trace& trace,
                           const Timeline& timeline,
                           const Partition& partition,
                           const IntervalSet& window) {
  // By place in the trace's list, or else by name and ranks.
  std::map<std::tuple<trace::StringId, trace::StringId, uint32_t>, uint32_t> index;
  const ListedGroups list(trace);
  WindowGroups out;
  std::vector<std::string> numbers;
  for (size_t i = 0; i < timeline.collectives.size(); ++i) {
    const Collective& c = timeline.collectives[i];
    if (!contains(window, c.when.start) && partition.exposed_length(i, window) == 0) {
      out.of.push_back(trace::kNoIndex);
      continue;
    }
    const trace::CollectiveArgs* args = args_of(trace, c);
    const bool named = args != nullptr && args->group != trace::kEmptyString;
    const bool listed = !named && c.listed_group != trace::kNoIndex;
    const uint32_t place = list.of(c);
    const auto [it, fresh] =
        index.try_emplace(named && place == trace::kNoIndex
                              ? std::tuple(args->group, args->group_ranks, trace::kNoIndex)
                              : std::tuple(trace::kEmptyString, trace::kEmptyString, place),
                          static_cast<uint32_t>(out.groups.size()));
    if (fresh) {
      WindowGroups::Group& made = out.groups.emplace_back();
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
    WindowGroups::Group& group = out.groups[it->second];
    group.size = named || listed ? std::max(group.size, c.ranks) : 0;
    out.of.push_back(it->second);
  }
  std::map<std::string, int> same;
  for (const WindowGroups::Group& group : out.groups) {
    ++same[group.name];
  }
  for (size_t i = 0; i < out.groups.size(); ++i) {
    if (same[out.groups[i].name] > 1) {
      out.groups[i].name += fmt::format(" {}", numbers[i]);
    }
  }
  return out;
}

std::vector<GroupFigures> group_figures(const WindowGroups& window_groups,
                                        const Timeline& timeline,
                                        const Partition& partition,
                                        const IntervalSet& window) {
  std::vector<GroupFigures> groups;
  for (const WindowGroups::Group& group : window_groups.groups) {
    GroupFigures& made = groups.emplace_back();
    made.name = group.name;
    made.ranks = group.ranks;
    made.size = group.size;
  }
  std::vector<UnionBuilder> busy(groups.size());
  for (size_t i = 0; i < timeline.collectives.size(); ++i) {
    const Collective& c = timeline.collectives[i];
    const uint32_t place = window_groups.of[i];
    if (place == trace::kNoIndex) {
      continue;
    }
    GroupFigures& group = groups[place];
    const bool starts_here = contains(window, c.when.start);
    group.count += starts_here ? 1 : 0;
    group.bytes += starts_here ? c.bytes : 0;
    group.exposed += partition.exposed_length(i, window);
    busy[place].add(c.when);
  }
  std::vector<IntervalSet> sets;
  for (size_t i = 0; i < groups.size(); ++i) {
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
