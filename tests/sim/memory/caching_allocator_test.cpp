// Worked out by hand from the rules in c10/cuda/CUDACachingAllocator.cpp.
#include "sim/memory/caching_allocator.h"

#include <iterator>
#include <map>
#include <random>

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
