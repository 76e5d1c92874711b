#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "core/base/collective.h"
#include "sim/memory/memory_replay.h"

namespace shardlens::sim {

const char* MemoryReplay::what_name(What what) {
  constexpr const char* kNames[] = {"shard",
                                    "optimizer state",
                                    "bucket",
                                    "ignored parameter",
                                    "saved",
                                    "saved again",
                                    "handed on",
                                    "unsharded gradient",
                                    "unsharded parameters",
                                    "all-gather output",
                                    "shard of the smaller mesh",
                                    "reduction's input",
                                    "reduction's output",
                                    "gradient of the shard",
                                    "copy between host and device"};
  return kNames[static_cast<size_t>(what)];
}

void MemoryReplay::list_alive(const MemoryInputs& inputs) {
  std::map<std::tuple<MemoryCategory, UnitId, std::string>, AliveAtPeak> rows;
  for (Block block = 0; block < holders_.size(); ++block) {
    const Holder& holder = holders_[block];
    if (!holder.alive) {
      continue;
    }
    std::string what = what_name(holder.what);
    if (holder.what == What::kSaved || holder.what == What::kSavedAgain ||
        holder.what == What::kHandedOn) {
      const plan::Workload& workload = inputs.workload;
      what += " by ";
      what += holder.op < workload.operators.size()
                  ? workload.operators[holder.op].name
                  : name_of(workload.communications[holder.op - workload.operators.size()].kind);
    }
    AliveAtPeak& row = rows[{holder.category, holder.unit, what}];
    row.category = holder.category;
    row.unit = holder.unit;
    row.what = what;
    row.bytes += allocator_.size(block);
    row.requested += holder.requested;
    ++row.count;
  }
  for (auto& [key, row] : rows) {
    out_.alive.push_back(std::move(row));
  }
  std::stable_sort(out_.alive.begin(), out_.alive.end(),
                   [](const AliveAtPeak& x, const AliveAtPeak& y) { return x.bytes > y.bytes; });
}

}  // namespace shardlens::sim
