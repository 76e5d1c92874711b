#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/units.h"

namespace shardlens::sim {

// A model of PyTorch's caching allocator that only computes addresses: what it would reserve for a
// sequence of allocations. A free block can be reused immediately, but only by its own stream,
// since work of one stream runs in issue order.
//
// [Note: Delayed reuse] A block that another stream has used too (Tensor::record_stream) belongs to
// its own stream again only when the other stream has passed the free: retire() and reclaim().
// Until then it is not allocated, but cannot be used.
//
// [Note: Expandable segments] By default each cudaMalloc is a segment, whose free blocks serve only
// what fits into them. With expandable_segments each pool of a stream is one range of addresses, to
// whose end pages are mapped: a free block at the end grows instead of being wasted, and is taken
// only if no other free block is large enough. Pages of free blocks are unmapped if memory runs
// out.
//
// Units   allocated() counts requested bytes, rounded up to 512, as "allocated_bytes" of torch.cuda
//         does; reserved() counts whole segments, or mapped pages.
// Source  c10/cuda/CUDACachingAllocator.cpp, torch 2.11, default settings but for Segments.
class CachingAllocator {
 public:
  using Block = uint32_t;
  enum class Segments : uint8_t { kFixed, kExpandable };

  static constexpr Bytes kRounding = 512;                  // kMinBlockSize
  static constexpr Bytes kSmallSize = Bytes{1} << 20;      // largest of the small pool
  static constexpr Bytes kSmallSegment = Bytes{2} << 20;   // kSmallBuffer
  static constexpr Bytes kLargeSegment = Bytes{20} << 20;  // kLargeBuffer
  static constexpr Bytes kMinLargeAlloc = Bytes{10} << 20;
  static constexpr Bytes kRoundLarge = Bytes{2} << 20;

  explicit CachingAllocator(Bytes capacity, Segments segments = Segments::kFixed)
      : segments_(segments), capacity_(capacity) {}

  // nullopt: out of memory, even after cached segments were released. Complexity: O(log blocks).
  [[nodiscard]] std::optional<Block> allocate(Bytes bytes, uint32_t stream);
  void free(Block block);
  // Frees the block, but it cannot be used until reclaim() with at least `stamp`. Stamps must not
  // decrease from call to call.
  void retire(Block block, uint64_t stamp);
  void reclaim(uint64_t stamp);

  [[nodiscard]] Bytes allocated() const { return allocated_; }
  [[nodiscard]] Bytes reserved() const { return reserved_; }
  [[nodiscard]] Bytes size(Block block) const { return blocks_[block].size; }
  [[nodiscard]] Bytes address(Block block) const { return blocks_[block].address; }
  // Allocated, or freed by retire() and not usable yet.
  [[nodiscard]] bool used(Block block) const { return blocks_[block].used; }
  // Blocks are numbered from 0; numbers of removed blocks are reused.
  [[nodiscard]] size_t blocks() const { return blocks_.size(); }
  // Returns to the initial state; keeps its storage.
  void reset(Bytes capacity, Segments segments = Segments::kFixed);
  struct Retired {
    uint64_t stamp = 0;
    Block block = 0;
  };
  [[nodiscard]] const std::vector<Retired>& retired() const { return retired_; }
  struct FreeBlock {
    uint32_t pool = 0;
    Bytes size = 0, address = 0;
    bool grows = false;  // the end of an expandable segment
    friend bool operator==(const FreeBlock&, const FreeBlock&) = default;
  };
  // By pool and size. Free and used blocks together determine all further results.
  [[nodiscard]] std::vector<FreeBlock> free_blocks() const;
  // Whether the pool is one of blocks up to kSmallSize.
  [[nodiscard]] static bool small(uint32_t pool) { return pool % 2 == 1; }

 private:
  static constexpr Block kNone = 0xffffffffU;
  static constexpr Bytes round_up(Bytes bytes, Bytes to) { return (bytes + to - 1) / to * to; }
  struct Entry {
    Bytes address = 0, size = 0;
    uint32_t pool = 0;  // in pools_
    bool used = false;
    bool mapped = true;  // false: pages of an expandable segment that were given back
    Block before = kNone, after = kNone;  // neighbours within the segment
  };
  // Free blocks of one size, by descending address.
  struct Bucket {
    Bytes size = 0;
    std::vector<Block> blocks;
  };
  // Best fit: the smallest block that is large enough; of several, the one with the lowest address.
  // There are few sizes, and backward frees blocks in the reverse order of forward, so changes are
  // mostly at the end of a bucket.
  struct Pool {
    std::vector<Bucket> buckets;  // by size
    // A cache: index of the bucket where a size was found last. Valid while that bucket has the
    // size.
    std::array<uint32_t, 256> found{};
    Block last = kNone;           // of an expandable segment
    std::vector<Block> unmapped;  // the same, by address
  };
  // Neighbours in an expandable segment that are mapped to become one block.
  struct Chain {
    Block first = kNone;  // kNone: all of it is behind the end of the segment
    Bytes mapped = 0;     // bytes of pages to map
  };

  static size_t bucket(Pool& pool, Bytes size);  // the first bucket of at least `size`
  std::vector<Block>::iterator place(Bucket& bucket, Bytes address);
  void put(Block block);
  void remove(Block block);
  Block add(const Entry& entry);
  [[nodiscard]] std::optional<Block> take_segment(uint32_t pool, Bytes bytes);
  [[nodiscard]] std::optional<Block> expand(uint32_t pool, Bytes bytes);
  [[nodiscard]] Chain chain_of(uint32_t pool, Bytes bytes) const;
  [[nodiscard]] std::optional<Chain> chain_from(Block first, Bytes bytes, Bytes page) const;
  Block append(uint32_t pool, Bytes bytes);
  Block map(Block hole, Bytes bytes);
  void unmap(Block block);
  void unmap_free(uint32_t pool);
  [[nodiscard]] bool is_free(Block block) const;
  [[nodiscard]] bool grows(Block block) const;
  void release_cached();
  Block cut(Block block, Bytes bytes);
  void join(Block into, Block other);
  void split(Block block, Bytes bytes);
  void merge(Block into, Block other);
  void make_free(Block block);

  Segments segments_;
  Bytes capacity_, allocated_ = 0, reserved_ = 0, next_address_ = 0;
  std::vector<Entry> blocks_;
  std::vector<Block> unused_;              // free entries of blocks_
  std::vector<Retired> retired_;           // oldest first
  std::vector<Pool> pools_;                // per stream: large blocks, small blocks
  std::vector<std::vector<Block>> spare_;  // storage of removed buckets
};

}  // namespace shardlens::sim
