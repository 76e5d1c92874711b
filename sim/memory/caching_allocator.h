#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/units.h"

namespace shardlens::sim {

// PyTorch's caching allocator on addresses alone: what it would reserve for a sequence of
// allocations. A block is reusable by its own stream only, at once: issue order is the stream's
// order.
//
// Units   allocated() counts what was asked for, rounded to 512 bytes, as torch.cuda's
//         "allocated_bytes" does; reserved() whole segments.
// Source  c10/cuda/CUDACachingAllocator.cpp, torch 2.11, default settings (no expandable segments).
class CachingAllocator {
 public:
  using Block = uint32_t;

  static constexpr Bytes kRounding = 512;                  // kMinBlockSize
  static constexpr Bytes kSmallSize = Bytes{1} << 20;      // largest of the small pool
  static constexpr Bytes kSmallSegment = Bytes{2} << 20;   // kSmallBuffer
  static constexpr Bytes kLargeSegment = Bytes{20} << 20;  // kLargeBuffer
  static constexpr Bytes kMinLargeAlloc = Bytes{10} << 20;
  static constexpr Bytes kRoundLarge = Bytes{2} << 20;

  explicit CachingAllocator(Bytes capacity) : capacity_(capacity) {}

  // nullopt: out of memory, also after giving back cached segments. Complexity: O(log blocks).
  [[nodiscard]] std::optional<Block> allocate(Bytes bytes, uint32_t stream);
  void free(Block block);

  [[nodiscard]] Bytes allocated() const { return allocated_; }
  [[nodiscard]] Bytes reserved() const { return reserved_; }
  [[nodiscard]] Bytes size(Block block) const { return blocks_[block].size; }
  [[nodiscard]] Bytes address(Block block) const { return blocks_[block].address; }
  // Blocks are numbered from 0; numbers of blocks that are gone are given again.
  [[nodiscard]] size_t blocks() const { return blocks_.size(); }
  // As new; keeps its storage.
  void reset(Bytes capacity);
  // Size and address of each free block: with the used ones all that answers hang on.
  [[nodiscard]] std::vector<std::array<Bytes, 2>> free_blocks() const;

 private:
  static constexpr Block kNone = 0xffffffffU;
  struct Entry {
    Bytes address = 0, size = 0;
    uint32_t pool = 0;  // in pools_
    bool used = false;
    Block before = kNone, after = kNone;  // neighbours within the segment
  };
  // Free blocks of one size, the lowest at the end.
  struct Bucket {
    Bytes size = 0;
    std::vector<Block> blocks;
  };
  // Best fit: the smallest that is large enough, of these the lowest. Sizes are few, and what
  // backward frees it frees in the order opposite to forward's: mostly at the end of a bucket.
  struct Pool {
    std::vector<Bucket> buckets;  // by size
    // Where sizes were found last: a place is good while its bucket has the size.
    std::array<uint32_t, 256> found{};
  };

  static bool small(uint32_t pool) { return pool % 2 == 1; }
  static size_t bucket(Pool& pool, Bytes size);  // the first of at least `size`
  std::vector<Block>::iterator place(Bucket& bucket, Bytes address);
  void put(Block block);
  void remove(Block block);
  Block add(const Entry& entry);
  [[nodiscard]] std::optional<Block> take_segment(uint32_t pool, Bytes bytes);
  void release_cached();
  void split(Block block, Bytes bytes);
  void merge(Block into, Block other);

  Bytes capacity_, allocated_ = 0, reserved_ = 0, next_address_ = 0;
  std::vector<Entry> blocks_;
  std::vector<Block> unused_;              // entries that stand for no block any more
  std::vector<Pool> pools_;                // of large and small blocks, stream by stream
  std::vector<std::vector<Block>> spare_;  // of buckets that were
};

}  // namespace shardlens::sim
