// Worked out by hand from the rules in c10/cuda/CUDACachingAllocator.cpp.
#include "sim/memory/caching_allocator.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace shardlens::sim::test {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kPlenty = Bytes{1} << 40;

TEST(CachingAllocatorTest, RoundsAndReservesSegments) {
  CachingAllocator allocator(kPlenty);
  ASSERT_TRUE(allocator.allocate(100, 0));
  EXPECT_EQ(allocator.allocated(), 512);
  EXPECT_EQ(allocator.reserved(), 2 * kMiB);
  ASSERT_TRUE(allocator.allocate(kMiB, 0));  // still of the small pool, in the same segment
  EXPECT_EQ(allocator.reserved(), 2 * kMiB);
  ASSERT_TRUE(allocator.allocate(kMiB + 1, 0));
  EXPECT_EQ(allocator.allocated(), 512 + kMiB + kMiB + 512);
  EXPECT_EQ(allocator.reserved(), 22 * kMiB);
  ASSERT_TRUE(allocator.allocate(5 * kMiB, 0));  // from the same 20 MiB
  EXPECT_EQ(allocator.reserved(), 22 * kMiB);
  ASSERT_TRUE(allocator.allocate(33 * kMiB, 0));  // a segment of its own, rounded to 2 MiB
  EXPECT_EQ(allocator.reserved(), 56 * kMiB);
}

TEST(CachingAllocatorTest, ALargeRemainderOfAMegabyteStaysWithTheBlock) {
  CachingAllocator allocator(kPlenty);
  ASSERT_TRUE(allocator.allocate(33 * kMiB, 0));
  EXPECT_EQ(allocator.allocated(), 34 * kMiB);  // 1 MiB is left: not more than kSmallSize
}

TEST(CachingAllocatorTest, ReusesPerStream) {
  CachingAllocator allocator(kPlenty);
  const auto block = allocator.allocate(40 * kMiB, 0);
  allocator.free(*block);
  EXPECT_EQ(allocator.allocated(), 0);
  ASSERT_TRUE(allocator.allocate(40 * kMiB, 1));
  EXPECT_EQ(allocator.reserved(), 80 * kMiB);  // stream 0's block is not stream 1's
  ASSERT_TRUE(allocator.allocate(40 * kMiB, 0));
  EXPECT_EQ(allocator.reserved(), 80 * kMiB);
}

// A retired block is not allocated, but cannot be used before it is reclaimed, or memory runs out.
TEST(CachingAllocatorTest, RetiredBlocksAreReusedWhenReclaimed) {
  constexpr Bytes kBlock = Bytes{16} << 20;
  CachingAllocator allocator(3 * kBlock);
  allocator.retire(*allocator.allocate(kBlock, 0), 1);
  EXPECT_EQ(allocator.allocated(), 0);
  allocator.retire(*allocator.allocate(kBlock, 0), 2);
  EXPECT_EQ(allocator.reserved(), 2 * kBlock);
  allocator.reclaim(0);
  EXPECT_EQ(allocator.retired().size(), 2U);
  allocator.reclaim(1);
  EXPECT_EQ(allocator.retired().size(), 1U);
  EXPECT_TRUE(allocator.allocate(kBlock, 0).has_value());
  EXPECT_EQ(allocator.reserved(), 2 * kBlock);
  // As PyTorch does before it gives up: waits for the other streams, releases, tries again.
  EXPECT_TRUE(allocator.allocate(2 * kBlock, 1).has_value());
  EXPECT_TRUE(allocator.retired().empty());
  EXPECT_EQ(allocator.reserved(), 3 * kBlock);
}

TEST(CachingAllocatorTest, NeighboursMerge) {
  CachingAllocator allocator(kPlenty);
  const auto a = allocator.allocate(6 * kMiB, 0), b = allocator.allocate(6 * kMiB, 0),
             c = allocator.allocate(6 * kMiB, 0);
  EXPECT_EQ(allocator.reserved(), 20 * kMiB);
  allocator.free(*a);
  allocator.free(*c);
  ASSERT_TRUE(allocator.allocate(9 * kMiB, 0));  // 6 and 8 MiB are free, but apart
  EXPECT_EQ(allocator.reserved(), 40 * kMiB);
  allocator.free(*b);
  ASSERT_TRUE(allocator.allocate(19 * kMiB, 0));  // now they are the whole segment
  EXPECT_EQ(allocator.reserved(), 40 * kMiB);
}

TEST(CachingAllocatorTest, BestFitIsTheSmallestThatIsLargeEnough) {
  CachingAllocator allocator(kPlenty);
  const auto large = allocator.allocate(64 * kMiB, 0), small = allocator.allocate(32 * kMiB, 0);
  allocator.free(*large);
  allocator.free(*small);
  ASSERT_TRUE(allocator.allocate(30 * kMiB, 0));  // from the 32: the 64 stay whole
  ASSERT_TRUE(allocator.allocate(64 * kMiB, 0));
  EXPECT_EQ(allocator.reserved(), 96 * kMiB);
}

TEST(CachingAllocatorTest, CachedSegmentsGoBeforeItIsOutOfMemory) {
  CachingAllocator allocator(100 * kMiB);
  const auto block = allocator.allocate(60 * kMiB, 0);
  EXPECT_FALSE(allocator.allocate(60 * kMiB, 1));
  allocator.free(*block);
  EXPECT_TRUE(allocator.allocate(60 * kMiB, 1));  // the cached one was released
  EXPECT_EQ(allocator.reserved(), 60 * kMiB);
}

CachingAllocator expandable(Bytes capacity) {
  return CachingAllocator(capacity, CachingAllocator::Segments::kExpandable);
}

// The rules as short as they can be written: every free block is looked at.
class SimpleAllocator {
 public:
  explicit SimpleAllocator(Bytes capacity) : capacity_(capacity) {}

  // The address; -1: out of memory.
  Bytes allocate(Bytes bytes, uint32_t stream) {
    const Bytes size = std::max<Bytes>(512, (bytes + 511) / 512 * 512);
    const bool small = size <= kMiB;
    auto best = best_fit(size, stream, small);
    if (best == pieces_.end()) {
      const Bytes segment = small              ? 2 * kMiB
                            : size < 10 * kMiB ? 20 * kMiB
                                               : (size + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
      if (reserved + segment > capacity_) {
        std::erase_if(pieces_, [this](const auto& each) {
          const Piece& piece = each.second;
          const bool whole = !piece.used && piece.size == segments_[piece.segment];
          reserved -= whole ? piece.size : 0;
          return whole;
        });
        if (reserved + segment > capacity_) {
          return -1;
        }
      }
      segments_[next_] = segment;
      best = pieces_.emplace(next_, Piece{segment, next_, stream, small, false}).first;
      next_ += segment;
      reserved += segment;
    }
    auto& [address, piece] = *best;
    const Bytes left = piece.size - size;
    if (small ? left >= 512 : left > kMiB) {
      Piece rest = piece;
      rest.size = left;
      pieces_.emplace(address + size, rest);
      piece.size = size;
    }
    piece.used = true;
    allocated += piece.size;
    return address;
  }

  void free(Bytes address) {
    auto at = pieces_.find(address);
    at->second.used = false;
    allocated -= at->second.size;
    at = join(at, std::next(at));
    if (at != pieces_.begin()) {
      join(std::prev(at), at);
    }
  }

  Bytes allocated = 0, reserved = 0;

 private:
  struct Piece {
    Bytes size, segment;
    uint32_t stream;
    bool small, used;
  };
  using Pieces = std::map<Bytes, Piece>;  // by address

  Pieces::iterator best_fit(Bytes size, uint32_t stream, bool small) {
    auto best = pieces_.end();
    for (auto at = pieces_.begin(); at != pieces_.end(); ++at) {
      const Piece& piece = at->second;
      if (!piece.used && piece.stream == stream && piece.small == small && piece.size >= size &&
          (best == pieces_.end() || piece.size < best->second.size)) {
        best = at;
      }
    }
    return best;
  }

  // Both become one if they are free and of one segment. Returns the first of what there is then.
  Pieces::iterator join(Pieces::iterator one, Pieces::iterator other) {
    if (other != pieces_.end() && !one->second.used && !other->second.used &&
        one->second.segment == other->second.segment) {
      one->second.size += other->second.size;
      pieces_.erase(other);
    }
    return one;
  }

  Bytes capacity_, next_ = 0;
  Pieces pieces_;
  std::map<Bytes, Bytes> segments_;  // sizes by address
};

TEST(CachingAllocatorTest, RandomSequencesAreThoseOfTheSimpleRules) {
  std::mt19937_64 random(11);
  CachingAllocator allocator(kPlenty);
  int refused = 0;
  for (const Bytes capacity : {kPlenty, 400 * kMiB, kPlenty}) {
    allocator.reset(capacity);  // keeps its storage
    SimpleAllocator simple(capacity);
    std::vector<std::pair<CachingAllocator::Block, Bytes>> used;  // with the address
    std::vector<Bytes> sizes;                                     // of a model: few, and many times
    for (int i = 0; i < 150; ++i) {
      sizes.push_back(static_cast<Bytes>(random() % ((i % 3 == 0 ? 40 : 1) * kMiB)) + 1);
    }
    for (int i = 0; i < 12000; ++i) {
      // More and more, then less and less, as in a step.
      const bool frees = random() % 16 < (i / 1000 % 2 == 0 ? 7U : 9U);
      if (frees && !used.empty()) {
        const size_t at = random() % 4 == 0 ? random() % used.size() : used.size() - 1;
        allocator.free(used[at].first);
        simple.free(used[at].second);
        used.erase(used.begin() + static_cast<std::ptrdiff_t>(at));
      } else {
        const Bytes bytes = sizes[random() % sizes.size()];
        const auto stream = static_cast<uint32_t>(random() % 2);
        const auto block = allocator.allocate(bytes, stream);
        const Bytes address = simple.allocate(bytes, stream);
        ASSERT_EQ(block.has_value(), address >= 0);
        refused += block ? 0 : 1;
        if (block) {
          ASSERT_EQ(allocator.address(*block), address);
          used.emplace_back(*block, address);
        }
      }
      ASSERT_EQ(allocator.allocated(), simple.allocated);
      ASSERT_EQ(allocator.reserved(), simple.reserved);
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(ExpandableSegmentsTest, AFreeBlockAtTheEndGrows) {
  CachingAllocator allocator = expandable(kPlenty);
  const auto block = allocator.allocate(30 * kMiB, 0);
  EXPECT_EQ(allocator.allocated(), 30 * kMiB);
  EXPECT_EQ(allocator.reserved(), 40 * kMiB);  // two pages of 20
  allocator.free(*block);
  ASSERT_TRUE(allocator.allocate(60 * kMiB, 0));
  EXPECT_EQ(allocator.reserved(), 60 * kMiB);
  ASSERT_TRUE(allocator.allocate(kMiB / 2, 0));  // small blocks have pages of 2 MiB
  EXPECT_EQ(allocator.reserved(), 62 * kMiB);
  ASSERT_TRUE(allocator.allocate(60 * kMiB, 1));  // another stream has a segment of its own
  EXPECT_EQ(allocator.reserved(), 122 * kMiB);
}

TEST(ExpandableSegmentsTest, TheEndIsTakenOnlyIfNothingElseIsLargeEnough) {
  CachingAllocator allocator = expandable(kPlenty);
  const auto large = allocator.allocate(30 * kMiB, 0);
  ASSERT_TRUE(allocator.allocate(10 * kMiB, 0));
  const auto end = allocator.allocate(20 * kMiB, 0);
  EXPECT_EQ(allocator.reserved(), 60 * kMiB);
  allocator.free(*large);
  allocator.free(*end);
  const auto block = allocator.allocate(20 * kMiB, 0);  // of the 30, although the end has 20
  EXPECT_EQ(allocator.address(*block), 0);
  ASSERT_TRUE(allocator.allocate(60 * kMiB, 0));  // the end and 40 more
  EXPECT_EQ(allocator.reserved(), 100 * kMiB);
}

TEST(ExpandableSegmentsTest, PagesOfFreeBlocksGoBeforeItIsOutOfMemory) {
  CachingAllocator allocator = expandable(100 * kMiB);
  const auto free = allocator.allocate(60 * kMiB, 0);
  ASSERT_TRUE(allocator.allocate(20 * kMiB, 0));
  allocator.free(*free);
  ASSERT_TRUE(allocator.allocate(60 * kMiB, 1));
  EXPECT_EQ(allocator.reserved(), 80 * kMiB);
  const auto again = allocator.allocate(20 * kMiB, 0);  // the first pages without memory
  ASSERT_TRUE(again);
  EXPECT_EQ(allocator.address(*again), 0);
  EXPECT_EQ(allocator.reserved(), 100 * kMiB);
  EXPECT_FALSE(allocator.allocate(20 * kMiB, 0));
}

TEST(ExpandableSegmentsTest, APageWithAUsedBlockStays) {
  CachingAllocator allocator = expandable(60 * kMiB);
  const auto free = allocator.allocate(30 * kMiB, 0);
  ASSERT_TRUE(allocator.allocate(10 * kMiB, 0));  // shares the second page
  allocator.free(*free);
  ASSERT_TRUE(allocator.allocate(40 * kMiB, 1));
  EXPECT_EQ(allocator.reserved(), 60 * kMiB);
  const auto block = allocator.allocate(10 * kMiB, 0);
  ASSERT_TRUE(block);
  EXPECT_EQ(allocator.address(*block), 20 * kMiB);
  EXPECT_EQ(allocator.reserved(), 60 * kMiB);
}

// Whatever is allocated and freed, blocks do not overlap, and their pages are what is reserved.
TEST(ExpandableSegmentsTest, RandomBlocksDoNotOverlap) {
  std::mt19937_64 random(5);
  CachingAllocator allocator = expandable(300 * kMiB);
  std::map<Bytes, CachingAllocator::Block> used;  // by address
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    if (!used.empty() && random() % 2 == 0) {
      const auto at = std::next(used.begin(), static_cast<int64_t>(random() % used.size()));
      allocator.free(at->second);
      used.erase(at);
      continue;
    }
    const bool large = random() % 4 == 0;
    const auto bytes = static_cast<Bytes>(random() % ((large ? 64 : 1) * kMiB)) + 1;
    const auto stream = static_cast<uint32_t>(random() % 2);
    const auto block = allocator.allocate(bytes, stream);
    if (!block) {
      ++refused;
      continue;
    }
    const Bytes begin = allocator.address(*block), end = begin + allocator.size(*block);
    const auto after = used.upper_bound(begin);
    ASSERT_TRUE(after == used.end() || end <= after->first);
    ASSERT_TRUE(after == used.begin() ||
                std::prev(after)->first + allocator.size(std::prev(after)->second) <= begin);
    used[begin] = *block;
    ASSERT_LE(allocator.allocated(), allocator.reserved());
    ASSERT_LE(allocator.reserved(), 300 * kMiB);
    Bytes mapped = allocator.allocated();
    for (const CachingAllocator::FreeBlock& free : allocator.free_blocks()) {
      mapped += free.size;
    }
    ASSERT_EQ(mapped, allocator.reserved());
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace shardlens::sim::test
