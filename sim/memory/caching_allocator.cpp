#include "sim/memory/caching_allocator.h"

#include <algorithm>

namespace shardlens::sim {
namespace {

Bytes round_up(Bytes bytes, Bytes to) {
  return (bytes + to - 1) / to * to;
}

}  // namespace

CachingAllocator::Free& CachingAllocator::pool(bool small, uint32_t stream) {
  const size_t index = 2 * size_t{stream} + (small ? 1 : 0);
  if (index >= pools_.size()) {
    pools_.resize(index + 1);
  }
  return pools_[index];
}

CachingAllocator::Free::iterator CachingAllocator::bucket(Free& free, Bytes size) {
  return std::lower_bound(free.begin(), free.end(), size,
                          [](const Bucket& each, Bytes least) { return each.size < least; });
}

// Where a block at `address` is, or belongs.
std::vector<CachingAllocator::Block>::iterator CachingAllocator::place(Bucket& bucket,
                                                                       Bytes address) {
  if (bucket.blocks.empty() || blocks_[bucket.blocks.back()].address > address) {
    return bucket.blocks.end();
  }
  return std::lower_bound(bucket.blocks.begin(), bucket.blocks.end(), address,
                          [this](Block each, Bytes than) { return blocks_[each].address > than; });
}

void CachingAllocator::put(Block block) {
  const Entry& entry = blocks_[block];
  Free& free = pool(entry);
  auto at = bucket(free, entry.size);
  if (at == free.end() || at->size != entry.size) {
    at = free.insert(at, Bucket{entry.size, {}});
  }
  at->blocks.insert(place(*at, entry.address), block);
}

void CachingAllocator::remove(Block block) {
  const Entry& entry = blocks_[block];
  Bucket& from = *bucket(pool(entry), entry.size);
  from.blocks.erase(place(from, entry.address));
}

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
  for (Free& free : pools_) {
    for (Bucket& bucket : free) {
      std::erase_if(bucket.blocks, [this](Block each) {
        const bool whole = blocks_[each].before == kNone && blocks_[each].after == kNone;
        if (whole) {
          reserved_ -= blocks_[each].size;
          unused_.push_back(each);
        }
        return whole;
      });
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
  put(other);
}

std::optional<CachingAllocator::Block> CachingAllocator::allocate(Bytes bytes, uint32_t stream) {
  const Bytes size = round_up(bytes < kRounding ? kRounding : bytes, kRounding);
  const bool small = size <= kSmallSize;
  Free& free = pool(small, stream);
  std::optional<Block> block;
  auto fits = bucket(free, size);
  while (fits != free.end() && fits->blocks.empty()) {
    ++fits;
  }
  if (fits != free.end()) {
    block = fits->blocks.back();
    fits->blocks.pop_back();
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
  remove(other);
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
  put(block);
}

std::vector<std::array<Bytes, 2>> CachingAllocator::free_blocks() const {
  std::vector<std::array<Bytes, 2>> all;
  for (const Free& free : pools_) {
    for (const Bucket& bucket : free) {
      for (const Block block : bucket.blocks) {
        all.push_back({blocks_[block].size, blocks_[block].address});
      }
    }
  }
  return all;
}

}  // namespace shardlens::sim
