#include "profiler/analysis/figures/rank_collectives.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "profiler/analysis/events/prefetch.h"
#include "profiler/analysis/timeline/communicator_of.h"

namespace shardlens::analysis {
namespace {

// The number of the step in which the host issued the collective; -1: none.
int64_t step_at(const std::vector<Step>& steps, const Collective& c) {
  const auto window = [&](const Step& s) -> const Interval& {
    return c.issued ? s.host : s.window;
  };
  const Nanoseconds at = c.issued.value_or(c.when.start);
  const auto after = std::partition_point(steps.begin(), steps.end(),
                                          [&](const Step& s) { return window(s).start <= at; });
  return after != steps.begin() && at < window(*std::prev(after)).end ? std::prev(after)->number
                                                                      : -1;
}

// Numbers values from 0 in the order in which they are first seen.
template <typename Value>
class Numbering {
 public:
  // Returns the number, and whether the value is new.
  std::pair<uint32_t, bool> of(const Value& value) {
    if (!latest_ || latest_->first != value) {
      const auto [it, fresh] = numbers_.try_emplace(value, static_cast<uint32_t>(numbers_.size()));
      latest_ = *it;
      return {it->second, fresh};
    }
    return {latest_->second, false};
  }

 private:
  std::map<Value, uint32_t> numbers_;
  std::optional<std::pair<Value, uint32_t>> latest_;  // most come several times in a row
};

}  // namespace

std::vector<uint32_t> communicators(const trace::Trace& trace, const Timeline& timeline) {
  Numbering<CommunicatorKey> ids;
  std::vector<uint32_t> out;
  out.reserve(timeline.collectives.size());
  for (const Collective& c : timeline.collectives) {
    out.push_back(ids.of(communicator_of(trace, c)).first);
  }
  return out;
}

RankCollectives rank_collectives(const trace::Trace& trace,
                                 const Timeline& timeline,
                                 int64_t rank) {
  RankCollectives out;
  out.rank = trace.metadata.rank.value_or(rank);
  out.units = timeline.units;
  Numbering<std::tuple<trace::StringId, trace::StringId, trace::StringId, uint32_t>> groups;
  Numbering<trace::StringId> names;
  const std::vector<uint32_t> communicator = communicators(trace, timeline);
  out.rows.reserve(timeline.collectives.size());
  trace::CollectiveArgs no_args;
  no_args.in_nelems = no_args.out_nelems = 0;
  for (size_t i = 0; i < timeline.collectives.size(); ++i) {
    if (i + kAhead < timeline.collectives.size()) {
      prefetch(trace.events[timeline.collectives[i + kAhead].event]);
    }
    const Collective& c = timeline.collectives[i];
    RankCollective& row = out.rows.emplace_back();
    row.when = c.when;
    row.issued = c.issued;
    row.kind = c.kind;
    row.part = c.part;
    row.unit = c.unit.value_or(kNoUnit);
    row.communicator = communicator[i];
    row.event = c.event;
    row.bytes = c.bytes;
    row.ranks = c.ranks;
    row.step = step_at(timeline.steps, c);
    row.last_start = c.last_start;
    row.last_rank = c.last_rank;
    row.last_index = c.last_index;
    row.transfer = c.transfer;
    const trace::StringId name = trace.events[c.event].name;
    const auto [name_id, new_name] = names.of(name);
    row.name = name_id;
    if (new_name) {
      out.names.emplace_back(trace.strings.view(name));
    }
    const trace::CollectiveArgs& args =
        c.args == trace::kNoIndex ? no_args : trace.collectives[c.args];
    const bool listed = args.group == trace::kEmptyString && c.listed_group != trace::kNoIndex;
    const auto [group, new_group] = groups.of({args.group, args.group_ranks, args.group_description,
                                               listed ? c.listed_group : trace::kNoIndex});
    row.group = group;
    if (new_group && listed) {
      const trace::ProcessGroup& of_list = trace.metadata.groups[c.listed_group];
      out.groups.push_back(
          {of_list.name, fmt::format("[{}]", fmt::join(of_list.ranks, ", ")), of_list.description});
    } else if (new_group) {
      const auto text = [&](trace::StringId id) { return std::string(trace.strings.view(id)); };
      out.groups.push_back(
          {text(args.group), text(args.group_ranks), text(args.group_description)});
    }
    row.sequence = args.sequence;
    row.comms_id = args.comms_id;
    row.sent = args.in_nelems;
    row.received = args.out_nelems;
    row.emulated = args.emulated;
  }
  return out;
}

}  // namespace shardlens::analysis
