// Finds the process groups of collectives that do not name theirs, as Gloo's.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "profiler/analysis/timeline/sources.h"
#include "profiler/trace/parallel_axes.h"

namespace shardlens::analysis {
namespace {

using trace::ParallelAxis;
using trace::ProcessGroup;
using trace::Trace;

// A group of the trace's list. Groups with the same ranks and description are one: DeviceMesh makes
// a second one when a program asks for the same mesh again.
struct ListedGroup {
  uint32_t index = trace::kNoIndex;  // of the first in the list
  std::optional<ParallelAxis> axis;
  int64_t ranks = 0;
  bool replicates = false;
};

std::vector<ListedGroup> listed_groups(const Trace& trace) {
  const std::vector<ProcessGroup>& all = trace.metadata.groups;
  std::vector<ListedGroup> out;
  for (uint32_t i = 0; i < all.size(); ++i) {
    const bool known = std::any_of(out.begin(), out.end(), [&](const ListedGroup& each) {
      return all[each.index].ranks == all[i].ranks &&
             all[each.index].description == all[i].description;
    });
    if (!known && all[i].size > 1) {
      out.push_back({i, trace::axis_of(all[i].description), all[i].size,
                     all[i].description.find("replicate") != std::string::npos});
    }
  }
  return out;
}

class GroupFinder {
 public:
  explicit GroupFinder(const Trace& trace) : trace_(trace), groups_(listed_groups(trace)) {}

  // Whether collectives may have several groups, those of one rank included.
  [[nodiscard]] bool may_differ() const {
    return groups_.size() > 1 ||
           (groups_.size() == 1 &&
            std::ranges::any_of(trace_.metadata.groups,
                                [](const ProcessGroup& each) { return each.size == 1; }));
  }

  // The groups that fit what the collective does, and over how many ranks.
  [[nodiscard]] std::vector<const ListedGroup*> of(const Collective& c) const {
    const bool of_parameters = c.part != UnitPart::kOther;
    std::vector<const ListedGroup*> fitting;
    if (groups_.size() == 1) {  // with one rank there is nothing to exchange
      if (!over_one_rank(c)) {
        fitting.push_back(&groups_.front());
      }
      return fitting;
    }
    if (!of_parameters && !c.unit) {
      return fitting;  // of the loss, of the gradients' norm, …: any group may do that
    }
    const int64_t ranks = ranks_of(c);
    for (const ListedGroup& each : groups_) {
      const bool divides_model = each.axis && each.axis != ParallelAxis::kData;
      if (divides_model != of_parameters && (ranks == 0 || each.ranks == ranks)) {
        fitting.push_back(&each);
      }
    }
    if (of_parameters) {
      // The group of all ranks is the one only if no mesh has that part.
      prefer(fitting, [](const ListedGroup& each) { return each.axis.has_value(); });
      const bool between_replicas = c.kind == CollectiveKind::kAllReduce;
      prefer(fitting, [&](const ListedGroup& each) { return each.replicates == between_replicas; });
    } else if (c.kind == CollectiveKind::kAllToAll) {
      prefer(fitting, [](const ListedGroup& each) { return each.axis == ParallelAxis::kExpert; });
    }
    return fitting;
  }

 private:
  // Keeps those that pass, if any does.
  template <class Test>
  static void prefer(std::vector<const ListedGroup*>& list, Test test) {
    if (std::any_of(list.begin(), list.end(), [&](const ListedGroup* g) { return test(*g); })) {
      std::erase_if(list, [&](const ListedGroup* g) { return !test(*g); });
    }
  }

  // Sizes of the call of an all-gather or a reduce-scatter, which differ by the ranks.
  [[nodiscard]] CallSize sizes_of(const Collective& c) const {
    const bool known = c.issuer != trace::kNoIndex && (c.kind == CollectiveKind::kAllGather ||
                                                       c.kind == CollectiveKind::kReduceScatter);
    return known ? call_size(trace_, trace_.events[c.issuer]) : CallSize();
  }

  [[nodiscard]] bool over_one_rank(const Collective& c) const {
    const CallSize size = sizes_of(c);
    return size.in > 0 && size.in == size.out;
  }

  // From the sizes of its call; 0: not in the trace, or the same on both sides.
  [[nodiscard]] int64_t ranks_of(const Collective& c) const {
    const CallSize size = sizes_of(c);
    const int64_t large = std::max(size.in, size.out), small = std::min(size.in, size.out);
    return small > 0 && large % small == 0 && large > small ? large / small : 0;
  }

  const Trace& trace_;
  std::vector<ListedGroup> groups_;
};

}  // namespace

void infer_groups(const Sources& sources, Timeline& timeline) {
  const Trace& trace = sources.trace;
  const GroupFinder finder(trace);
  const auto is_named = [&](const Collective& c) {
    return c.args != trace::kNoIndex && trace.collectives[c.args].group != trace::kEmptyString;
  };
  // Of one group only, all need no name, unless others have it, as those outside of a CUDA graph.
  if (!finder.may_differ() && std::ranges::none_of(timeline.collectives, is_named)) {
    return;
  }
  for (Collective& c : timeline.collectives) {
    if (is_named(c)) {
      continue;
    }
    const std::vector<const ListedGroup*> fitting = finder.of(c);
    if (fitting.size() == 1) {
      c.listed_group = fitting.front()->index;
    }
    // Also of which of several is not known, the number of ranks is, if it is that of each.
    if (!fitting.empty() && std::ranges::all_of(fitting, [&](const ListedGroup* each) {
          return each->ranks == fitting.front()->ranks;
        })) {
      c.ranks = fitting.front()->ranks;
    }
  }
}

}  // namespace shardlens::analysis
