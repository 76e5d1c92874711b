#include "sim/memory/caching_allocator.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace shardlens::sim {
namespace {

constexpr Bytes kNowhere = std::numeric_limits<Bytes>::max();

}  // namespace

size_t CachingAllocator::bucket(Pool& pool, Bytes size) {
  const auto hash = (static_cast<uint64_t>(size / kRounding) * 0x9e3779b97f4a7c15ULL) >> 56;
  uint32_t& found = pool.found[hash];
  if (found >= pool.buckets.size() || pool.buckets[found].size != size) {
    found = static_cast<uint32_t>(
        std::lower_bound(pool.buckets.begin(), pool.buckets.end(), size,
                         [](const Bucket& each, Bytes least) { return each.size < least; }) -
        pool.buckets.begin());
  }
  return found;
}

// Position of the block at `address`, or where to insert it.
std::vector<CachingAllocator::Block>::iterator CachingAllocator::place(Bucket& bucket,
                                                                       Bytes address) {
  const Bytes lowest = bucket.blocks.empty() ? kNowhere : blocks_[bucket.blocks.back()].address;
  if (address <= lowest) {
    return bucket.blocks.end() - (address == lowest ? 1 : 0);
  }
  return std::lower_bound(bucket.blocks.begin(), bucket.blocks.end(), address,
                          [this](Block each, Bytes than) { return blocks_[each].address > than; });
}

void CachingAllocator::put(Block block) {
  const Entry& entry = blocks_[block];
  Pool& free = pools_[entry.pool];
  const size_t at = bucket(free, entry.size);
  if (at == free.buckets.size() || free.buckets[at].size != entry.size) {
    const auto fresh = free.buckets.insert(free.buckets.begin() + static_cast<std::ptrdiff_t>(at),
                                           Bucket{entry.size, {}});
    if (!spare_.empty()) {
      fresh->blocks = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  std::vector<Block>& blocks = free.buckets[at].blocks;
  if (blocks.empty() || entry.address < blocks_[blocks.back()].address) {
    blocks.push_back(block);  // mostly
  } else {
    blocks.insert(place(free.buckets[at], entry.address), block);
  }
}

void CachingAllocator::remove(Block block) {
  const Entry& entry = blocks_[block];
  Pool& free = pools_[entry.pool];
  Bucket& from = free.buckets[bucket(free, entry.size)];
  if (from.blocks.back() == block) {
    from.blocks.pop_back();
  } else {
    from.blocks.erase(place(from, entry.address));
  }
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
std::optional<CachingAllocator::Block> CachingAllocator::take_segment(uint32_t pool, Bytes bytes) {
  const Bytes size = small(pool)              ? kSmallSegment
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
  entry.pool = pool;
  next_address_ += size;
  reserved_ += size;
  return add(entry);
}

// Releases segments without used blocks to the device. Like release_cached_blocks(), waits first
// until all retired blocks can be used.
void CachingAllocator::release_cached() {
  reclaim(std::numeric_limits<uint64_t>::max());
  if (segments_ == Segments::kExpandable) {
    for (uint32_t pool = 0; pool < pools_.size(); ++pool) {
      unmap_free(pool);
    }
    return;
  }
  for (Pool& free : pools_) {
    for (Bucket& bucket : free.buckets) {
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

// should_split(): the rest of the block returns to the pool.
void CachingAllocator::split(Block block, Bytes bytes) {
  const Bytes left = blocks_[block].size - bytes;
  const bool of_any_size = small(blocks_[block].pool) || segments_ == Segments::kExpandable;
  if (of_any_size ? left >= kRounding : left > kSmallSize) {
    put(cut(block, bytes));
  }
}

// What is behind the first `bytes` of the block, as a free block that is in no bucket yet.
CachingAllocator::Block CachingAllocator::cut(Block block, Bytes bytes) {
  Entry rest = blocks_[block];
  rest.address += bytes;
  rest.size -= bytes;
  rest.used = false;
  rest.before = block;
  const Block other = add(rest);
  Entry& taken = blocks_[block];
  taken.size = bytes;
  taken.after = other;
  if (rest.after != kNone) {
    blocks_[rest.after].before = other;
  } else {
    pools_[rest.pool].last = other;
  }
  return other;
}

std::optional<CachingAllocator::Block> CachingAllocator::allocate(Bytes bytes, uint32_t stream) {
  const Bytes size = round_up(bytes < kRounding ? kRounding : bytes, kRounding);
  const uint32_t pool = 2 * stream + (size <= kSmallSize ? 1 : 0);
  if (pool >= pools_.size()) {
    pools_.resize(pool + 1);
  }
  Pool& free = pools_[pool];
  std::optional<Block> block;
  size_t fits = bucket(free, size);
  while (fits < free.buckets.size() && free.buckets[fits].blocks.empty()) {
    ++fits;
  }
  if (fits < free.buckets.size() && grows(free.buckets[fits].blocks.back())) {
    size_t other = fits + 1;
    while (other < free.buckets.size() && free.buckets[other].blocks.empty()) {
      ++other;
    }
    fits = other < free.buckets.size() ? other : fits;
  }
  if (fits < free.buckets.size()) {
    block = free.buckets[fits].blocks.back();
    free.buckets[fits].blocks.pop_back();
  } else {
    block = segments_ == Segments::kFixed ? take_segment(pool, size) : expand(pool, size);
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
  join(into, other);
}

// Makes neighbours one block.
void CachingAllocator::join(Block into, Block other) {
  Pool& pool = pools_[blocks_[into].pool];
  pool.last = pool.last == other ? into : pool.last;
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
  make_free(block);
}

void CachingAllocator::retire(Block block, uint64_t stamp) {
  allocated_ -= blocks_[block].size;
  retired_.push_back({stamp, block});
}

void CachingAllocator::reclaim(uint64_t stamp) {
  size_t passed = 0;
  while (passed < retired_.size() && retired_[passed].stamp <= stamp) {
    make_free(retired_[passed++].block);
  }
  retired_.erase(retired_.begin(), retired_.begin() + static_cast<std::ptrdiff_t>(passed));
}

void CachingAllocator::make_free(Block block) {
  blocks_[block].used = false;
  for (const Block other : {blocks_[block].before, blocks_[block].after}) {
    if (is_free(other)) {
      merge(block, other);
    }
  }
  put(block);
}

void CachingAllocator::reset(Bytes capacity, Segments segments) {
  segments_ = segments;
  capacity_ = capacity;
  allocated_ = reserved_ = next_address_ = 0;
  blocks_.clear();
  unused_.clear();
  retired_.clear();
  for (Pool& free : pools_) {
    for (Bucket& bucket : free.buckets) {
      bucket.blocks.clear();
      spare_.push_back(std::move(bucket.blocks));
    }
    free.buckets.clear();
    free.last = kNone;
    free.unmapped.clear();
  }
}

std::vector<CachingAllocator::FreeBlock> CachingAllocator::free_blocks() const {
  std::vector<FreeBlock> all;
  for (uint32_t pool = 0; pool < pools_.size(); ++pool) {
    for (const Bucket& bucket : pools_[pool].buckets) {
      for (const Block block : bucket.blocks) {
        all.push_back({pool, blocks_[block].size, blocks_[block].address, grows(block)});
      }
    }
  }
  return all;
}

}  // namespace shardlens::sim
