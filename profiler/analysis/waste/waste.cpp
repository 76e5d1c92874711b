#include "profiler/analysis/waste/waste.h"

#include <algorithm>
#include <array>
#include <utility>

#include "profiler/analysis/waste/waste_rules.h"

namespace shardlens::analysis {

std::string_view name_of(WasteKind kind) {
  constexpr std::array<std::string_view, kWasteKindCount> kNames{
      "gathered_again",    "unused_gather",      "cast_again", "frozen_views",
      "late_bucket",       "slow_in_graph",      "host_sync",  "root_gathered_again",
      "unaligned_message", "shared_communicator"};
  static_assert(!kNames.back().empty());  // an enumerator without a name does not compile
  return kNames[static_cast<size_t>(kind)];
}

std::string_view explanation_of(WasteKind kind) {
  switch (kind) {
    case WasteKind::kGatheredAgain:
      return "gathered more than once in one forward or backward: call the module once, or keep "
             "its "
             "parameters after forward";
    case WasteKind::kUnusedGather:
      return "gathered, but nothing waited for the parameters: do not prefetch it";
    case WasteKind::kCastAgain:
      return "the same parameters were cast again for an all-gather: keep them after forward, or "
             "keep a copy in low precision";
    case WasteKind::kFrozenViews:
      return "gradients were reduced only after the whole backward: create the parameter views in "
             "each forward";
    case WasteKind::kLateBucket:
      return "a bucket waited for its last gradient while nothing was communicated: a smaller "
             "bucket_cap_mb, or another order of the parameters";
    case WasteKind::kSlowInGraph:
      return "the shortest of this size took longer in a CUDA graph than outside: compare with "
             "NCCL_GRAPH_REGISTER=0, and see what else ran at that time (--by group)";
    case WasteKind::kRootGatheredAgain:
      return "the root's parameters were freed after forward and gathered again when backward "
             "began: keep them (reshard_after_forward=False for the root)";
    case WasteKind::kUnalignedMessage:
      return "a rank's part of the message was no multiple of 16 bytes, which NCCL copies in small "
             "pieces: pad the parameter, or leave it out of the unit";
    case WasteKind::kSharedCommunicator:
      return "experts and FSDP waited for each other on one communicator: give the experts a "
             "process group of their own";
    case WasteKind::kHostSync:
      return "the host waited for the device, which then had nothing to do: avoid .item(), prints "
             "of tensors and other waits within a step";
  }
  return "";
}

std::vector<Waste> FoundWaste::take() {
  std::vector<Waste> out;
  for (auto& [key, waste] : found_) {
    out.push_back(std::move(waste));
  }
  found_.clear();
  std::stable_sort(out.begin(), out.end(),
                   [](const Waste& a, const Waste& b) { return a.lost > b.lost; });
  return out;
}

std::vector<Waste> find_waste(const trace::Trace& trace,
                              const Timeline& timeline,
                              const Partition& partition,
                              const Dependencies& dependencies,
                              const FrozenViews* frozen_views,
                              const IntervalSet& window) {
  const ThreadLaunches launches(trace, timeline);
  const WasteInput in{trace, timeline, partition, dependencies, window, launches};
  FoundWaste found;
  const FsdpSource source = timeline.fsdp.source;
  if (source == FsdpSource::kFsdp2 || source == FsdpSource::kShardlens) {
    find_needless_gathers(in, found);
    find_needless_casts(in, found);
  }
  find_root_gathers(in, found);
  find_unaligned_messages(in, found);
  find_shared_communicators(in, found);
  find_late_buckets(in, found);
  if (timeline.captured) {
    find_slow_in_graph(in, found);
  }
  find_host_syncs(in, found);
  if (frozen_views != nullptr) {
    found.add(WasteKind::kFrozenViews, "", frozen_views->lost, frozen_views->backwards);
  }
  return found.take();
}

}  // namespace shardlens::analysis
