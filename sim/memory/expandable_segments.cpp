// See [Note: Expandable segments].
#include <algorithm>

#include "sim/memory/caching_allocator.h"

namespace shardlens::sim {
namespace {

// Pages are as large as the segments would be: c10's ExpandableSegment.
Bytes page_of(uint32_t pool) {
  return CachingAllocator::small(pool) ? CachingAllocator::kSmallSegment
                                       : CachingAllocator::kLargeSegment;
}

}  // namespace

bool CachingAllocator::is_free(Block block) const {
  return block != kNone && !blocks_[block].used && blocks_[block].mapped;
}

bool CachingAllocator::grows(Block block) const {
  if (segments_ == Segments::kFixed) {
    return false;
  }
  const Block after = blocks_[block].after;
  return after == kNone || !blocks_[after].mapped;
}

// nullopt: a used block is in the way.
std::optional<CachingAllocator::Chain> CachingAllocator::chain_from(Block first,
                                                                    Bytes bytes,
                                                                    Bytes page) const {
  Chain chain{first, 0};
  Bytes size = 0;
  for (Block at = first; size < bytes; at = blocks_[at].after) {
    if (at == kNone) {
      chain.mapped += round_up(bytes - size, page);
      break;
    }
    if (!blocks_[at].mapped) {
      const Bytes part = std::min(blocks_[at].size, round_up(bytes - size, page));
      chain.mapped += part;
      size += part;
    } else if (is_free(at)) {
      size += blocks_[at].size;
    } else {
      return std::nullopt;
    }
  }
  return chain;
}

// find_expandable_block(): the first pages without memory that, with free blocks beside them, are
// enough, else the end of the segment.
CachingAllocator::Chain CachingAllocator::chain_of(uint32_t pool, Bytes bytes) const {
  const Pool& of = pools_[pool];
  for (const Block hole : of.unmapped) {
    const Block before = blocks_[hole].before;
    if (const auto chain = chain_from(is_free(before) ? before : hole, bytes, page_of(pool))) {
      return *chain;
    }
  }
  return *chain_from(is_free(of.last) ? of.last : kNone, bytes, page_of(pool));
}

// try_allocate_expandable_block().
std::optional<CachingAllocator::Block> CachingAllocator::expand(uint32_t pool, Bytes bytes) {
  Chain chain = chain_of(pool, bytes);
  if (reserved_ + chain.mapped > capacity_) {
    release_cached();
    chain = chain_of(pool, bytes);
    if (reserved_ + chain.mapped > capacity_) {
      return std::nullopt;
    }
  }
  Block whole = kNone;
  while (whole == kNone || blocks_[whole].size < bytes) {
    const Bytes size = whole == kNone ? 0 : blocks_[whole].size;
    const Block next = whole == kNone ? chain.first : blocks_[whole].after;
    Block part = next;
    if (next == kNone) {
      part = append(pool, round_up(bytes - size, page_of(pool)));
    } else if (blocks_[next].mapped) {
      remove(next);
    } else {
      part = map(next, std::min(blocks_[next].size, round_up(bytes - size, page_of(pool))));
    }
    if (whole == kNone) {
      whole = part;
    } else {
      join(whole, part);
    }
  }
  if (const Block after = blocks_[whole].after; is_free(after)) {
    merge(whole, after);
  }
  return whole;
}

// Maps pages behind the end of the pool's segment.
CachingAllocator::Block CachingAllocator::append(uint32_t pool, Bytes bytes) {
  constexpr Bytes kRange = kLargeSegment << 20;  // addresses of a pool
  Pool& of = pools_[pool];
  Entry entry;
  entry.pool = pool;
  entry.size = bytes;
  entry.before = of.last;
  entry.address =
      of.last == kNone ? kRange * pool : blocks_[of.last].address + blocks_[of.last].size;
  const Block block = add(entry);
  if (of.last != kNone) {
    blocks_[of.last].after = block;
  }
  of.last = block;
  reserved_ += bytes;
  return block;
}

// Maps the first `bytes` of pages without memory.
CachingAllocator::Block CachingAllocator::map(Block hole, Bytes bytes) {
  std::vector<Block>& holes = pools_[blocks_[hole].pool].unmapped;
  const auto at = std::find(holes.begin(), holes.end(), hole);
  if (bytes < blocks_[hole].size) {
    *at = cut(hole, bytes);
  } else {
    holes.erase(at);
  }
  blocks_[hole].mapped = true;
  reserved_ += bytes;
  return hole;
}

// Gives back the pages that are whole within a free block.
void CachingAllocator::unmap(Block block) {
  const uint32_t pool = blocks_[block].pool;
  const Bytes page = page_of(pool);
  const Bytes begin = blocks_[block].address, end = begin + blocks_[block].size;
  const Bytes first = round_up(begin, page), last = end / page * page;
  if (last <= first) {
    return;
  }
  remove(block);
  Block hole = block;
  if (first > begin) {
    hole = cut(block, first - begin);
    put(block);
  }
  if (end > last) {
    put(cut(hole, last - first));
  }
  reserved_ -= last - first;
  blocks_[hole].mapped = false;
  std::vector<Block>& holes = pools_[pool].unmapped;
  holes.insert(
      std::lower_bound(holes.begin(), holes.end(), first,
                       [this](Block each, Bytes than) { return blocks_[each].address < than; }),
      hole);
}

void CachingAllocator::unmap_free(uint32_t pool) {
  std::vector<Block> free;
  for (const Bucket& bucket : pools_[pool].buckets) {
    free.insert(free.end(), bucket.blocks.begin(), bucket.blocks.end());
  }
  for (const Block block : free) {
    unmap(block);
  }
}

}  // namespace shardlens::sim
