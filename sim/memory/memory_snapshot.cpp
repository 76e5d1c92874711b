// Whether a microbatch begins with the same memory as the one before it.
#include <algorithm>
#include <utility>

#include "sim/memory/memory_replay.h"

namespace shardlens::sim {

void MemoryReplay::take_snapshot(Snapshot& now) const {
  now.used.clear();
  for (Block block = 0; block < holders_.size(); ++block) {
    if (holders_[block].alive) {
      now.used.push_back({allocator_.address(block), allocator_.size(block)});
    }
  }
  std::sort(now.used.begin(), now.used.end());
  now.free = allocator_.free_blocks();
  now.retired.clear();
  for (const CachingAllocator::Retired& each : allocator_.retired()) {
    now.retired.push_back(
        {allocator_.address(each.block), static_cast<Bytes>(recorded_ - each.stamp)});
  }
  now.reserved = allocator_.reserved();
}

// Whether a microbatch, from the third on, begins with the same memory as the previous one.
bool MemoryReplay::begins_as_before(const MemoryOutline& outline, size_t microbatch) {
  if (microbatch == 0 || outline.microbatches.size() < 3) {
    return false;
  }
  take_snapshot(now_);
  const bool unchanged = microbatch > 1 && now_ == before_;
  std::swap(before_, now_);
  return unchanged;
}

}  // namespace shardlens::sim
