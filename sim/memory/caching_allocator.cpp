#include "sim/memory/caching_allocator.h"

namespace shardlens::sim {
namespace {

Bytes round_up(Bytes bytes, Bytes to) {
  return (bytes + to - 1) / to * to;
}

}  // namespace

CachingAllocator::Block CachingAllocator::add(const Entry& entry) {
  if (!unused_.empty()) {
    const Block block = unused_.back();
    unused_.pop_back();
    blocks_[block] = entry;
    return block;
  }
  blocks_.push_back(entry);
  return static_cast<Block>(blocks_.size() - 1);
}

// get_allocation_size(), then cudaMalloc.
std::optional<CachingAllocator::Block> CachingAllocator::take_segment(bool small,
                                                                      uint32_t stream,
                                                                      Bytes bytes) {
  const Bytes size = small                    ? kSmallSegment
                     : bytes < kMinLargeAlloc ? kLargeSegment
                                              : round_up(bytes, kRoundLarge);
  if (reserved_ + size > capacity_) {
    release_cached();
    if (reserved_ + size > capacity_) {
      return std::nullopt;
    }
  }
  Entry entry;
  entry.address = next_address_;
  entry.size = size;
  entry.stream = stream;
  entry.small = small;
  next_address_ += size;
  reserved_ += size;
  return add(entry);
}

// Segments of which nothing is used go back to the device.
void CachingAllocator::release_cached() {
  for (auto& [key, free] : pools_) {
    for (auto it = free.begin(); it != free.end();) {
      const Block block = std::get<2>(*it);
      if (blocks_[block].before == kNone && blocks_[block].after == kNone) {
        reserved_ -= blocks_[block].size;
        unused_.push_back(block);
        it = free.erase(it);
      } else {
        ++it;
      }
    }
  }
}

// should_split(): what is left goes back to the pool.
void CachingAllocator::split(Block block, Bytes bytes) {
  const Bytes left = blocks_[block].size - bytes;
  if (blocks_[block].small ? left < kRounding : left <= kSmallSize) {
    return;
  }
  Entry rest = blocks_[block];
  rest.address += bytes;
  rest.size = left;
  rest.used = false;
  rest.before = block;
  const Block other = add(rest);
  Entry& taken = blocks_[block];
  taken.size = bytes;
  taken.after = other;
  if (rest.after != kNone) {
    blocks_[rest.after].before = other;
  }
  pool(rest).emplace(left, rest.address, other);
}

std::optional<CachingAllocator::Block> CachingAllocator::allocate(Bytes bytes, uint32_t stream) {
  const Bytes size = round_up(bytes < kRounding ? kRounding : bytes, kRounding);
  const bool small = size <= kSmallSize;
  Free& free = pools_[{small, stream}];
  std::optional<Block> block;
  if (const auto fits = free.lower_bound({size, 0, 0}); fits != free.end()) {
    block = std::get<2>(*fits);
    free.erase(fits);
  } else {
    block = take_segment(small, stream, size);
  }
  if (!block) {
    return std::nullopt;
  }
  blocks_[*block].used = true;
  split(*block, size);
  allocated_ += blocks_[*block].size;
  return block;
}

void CachingAllocator::merge(Block into, Block other) {
  pool(blocks_[other]).erase({blocks_[other].size, blocks_[other].address, other});
  Entry& entry = blocks_[into];
  if (entry.before == other) {
    entry.address = blocks_[other].address;
    entry.before = blocks_[other].before;
    if (entry.before != kNone) {
      blocks_[entry.before].after = into;
    }
  } else {
    entry.after = blocks_[other].after;
    if (entry.after != kNone) {
      blocks_[entry.after].before = into;
    }
  }
  entry.size += blocks_[other].size;
  unused_.push_back(other);
}

void CachingAllocator::free(Block block) {
  allocated_ -= blocks_[block].size;
  blocks_[block].used = false;
  for (const Block other : {blocks_[block].before, blocks_[block].after}) {
    if (other != kNone && !blocks_[other].used) {
      merge(block, other);
    }
  }
  const Entry& entry = blocks_[block];
  pool(entry).emplace(entry.size, entry.address, block);
}

}  // namespace shardlens::sim
