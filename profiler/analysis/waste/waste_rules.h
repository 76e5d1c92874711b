#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "profiler/analysis/waste/thread_launches.h"
#include "profiler/analysis/waste/waste.h"

// The kinds of waste, each with a rule in a file of its own; used only by waste.cpp.
namespace shardlens::analysis {

// The waste found so far, by kind and place.
class FoundWaste {
 public:
  // Counts one more occurrence.
  void add(WasteKind kind, const std::string& where, Nanoseconds lost, int64_t count = 1) {
    Waste& waste = found_[{kind, where}];
    waste.kind = kind;
    waste.where = where;
    waste.count += count;
    waste.lost += lost;
  }
  template <typename Test>
  void erase_if(Test test) {
    std::erase_if(found_, [&](const auto& each) { return test(each.second); });
  }
  // The most expensive first.
  [[nodiscard]] std::vector<Waste> take();

 private:
  std::map<std::pair<WasteKind, std::string>, Waste> found_;
};

struct WasteInput {  // what the rules read of a rank
  const trace::Trace& trace;
  const Timeline& timeline;
  const Partition& partition;
  const Dependencies& dependencies;
  const IntervalSet& window;
  const ThreadLaunches& launches;
};

// kGatheredAgain and kUnusedGather, of FSDP2.
void find_needless_gathers(const WasteInput& in, FoundWaste& found);
// kCastAgain, of FSDP2.
void find_needless_casts(const WasteInput& in, FoundWaste& found);
// kRootGatheredAgain, of collectives that have units.
void find_root_gathers(const WasteInput& in, FoundWaste& found);
// kUnalignedMessage, of devices.
void find_unaligned_messages(const WasteInput& in, FoundWaste& found);
// kSharedCommunicator
void find_shared_communicators(const WasteInput& in, FoundWaste& found);
void find_late_buckets(const WasteInput& in, FoundWaste& found);
// kSlowInGraph, of traces that have the same collectives outside of CUDA graphs.
void find_slow_in_graph(const WasteInput& in, FoundWaste& found);
void find_host_syncs(const WasteInput& in, FoundWaste& found);

}  // namespace shardlens::analysis
