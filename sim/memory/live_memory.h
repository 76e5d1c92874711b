#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "core/schedule/action.h"
#include "core/schedule/planned/planned.h"
#include "core/workload/workload.h"
#include "sim/memory/caching_allocator.h"
#include "sim/memory/peak_memory.h"

namespace shardlens::sim {

// The allocations of a replay: what each is for, the sums by category, their peak, and their
// history. The lowest layer of MemoryReplay.
class LiveMemory {
 protected:
  using Block = CachingAllocator::Block;
  static constexpr Block kNone = 0xffffffffU;
  static constexpr Block kElsewhere = 0xfffffffeU;  // alive, but in the part that is not replayed

  enum class Part : uint8_t { kAll, kCompute, kOthers };

  // Names: see what_name().
  enum class What : uint8_t {
    kShard,
    kOptimizerState,
    kBucket,
    kIgnored,
    kSaved,
    kSavedAgain,
    kHandedOn,
    kUnshardedGradient,
    kUnsharded,
    kGathered,
    kSubShard,
    kReduceInput,
    kReduceOutput,
    kGradient,
    kStaged,
  };
  // A live allocation of Part::kAll, by block.
  struct Holder {
    Bytes requested = 0;
    UnitId unit = kNoUnit;
    uint32_t op = 0;  // the operator that saved it or hands it on
    MemoryCategory category = MemoryCategory::kParameters;
    What what = What::kShard;
    bool alive = false;
  };
  // Addresses and sizes of all blocks.
  struct Snapshot {
    std::vector<std::array<Bytes, 2>> used;
    std::vector<CachingAllocator::FreeBlock> free;
    std::vector<std::array<Bytes, 2>> retired;  // address, and number of kRecord since
    Bytes reserved = 0;
    friend bool operator==(const Snapshot&, const Snapshot&) = default;
  };

  void begin(Bytes capacity, CachingAllocator::Segments segments, Part part);
  // Most calls of the two are about nothing, so these are inline.
  Block hold(Bytes bytes,
             schedule::Stream stream,
             MemoryCategory category,
             UnitId unit,
             What what,
             uint32_t op = 0) {
    if (bytes == 0 || ended()) {
      return kNone;
    }
    return part_ == Part::kAll ? allocate_block(bytes, stream, category, unit, what, op)
                               : allocate_in_part(bytes, stream);
  }
  // `later`: another stream than the block's own uses it until now.
  void drop(Block& block, bool later = false) {
    if (block != kNone) {
      release_block(block, later);
    }
  }
  // The allocation becomes a gradient: only its category changes.
  void become_gradient(Block block);
  [[nodiscard]] bool ended() const { return failed_ || stopped_; }
  // Records the categories at the peak; called before memory decreases or changes its category.
  void note_peak();
  void list_alive(const plan::Workload& workload);
  void take_snapshot(Snapshot& now) const;
  void begin_history(bool keep);
  // Adds to the history what happened since the last call. `item`: of the outline; `op`: index into
  // MemoryOutline::operators, or kNoOperator.
  void note_history(uint32_t item, uint32_t op);
  // What was allocated through `step`, whose outline was replayed.
  [[nodiscard]] std::vector<MemoryMoment> history_of(const schedule::PlannedStep& step) const;
  // Moves the changes of the history to `out`, with their holders.
  void take_changes(const plan::Workload& workload, StepMemory& out);

  CachingAllocator allocator_{0};
  Part part_ = Part::kAll;
  int64_t peak_at_ = 0;    // number of the allocation that made the peak
  int64_t stop_at_ = -1;   // number of the allocation after which to stop; -1: none
  uint64_t recorded_ = 0;  // kRecord so far
  bool failed_ = false, stopped_ = false;
  static constexpr uint32_t kNoOperator = 0xffffffffU;
  bool keeps_history_ = false;
  Bytes highest_ = 0;                        // since the last call of note_history()
  Bytes most_ = 0;                           // most allocated bytes since it was set
  Bytes least_large_ = 0, least_small_ = 0;  // as in ComputeMemory
  StepMemory out_;

 private:
  Block allocate_block(Bytes bytes,
                       schedule::Stream stream,
                       MemoryCategory category,
                       UnitId unit,
                       What what,
                       uint32_t op);
  // Only addresses and sizes are known of a part's blocks, not what they are for.
  Block allocate_in_part(Bytes bytes, schedule::Stream stream);
  void release_block(Block& block, bool later);

  struct Noted {
    uint32_t item = 0, op = kNoOperator;
    std::array<Bytes, kMemoryCategoryCount> bytes{};
    uint32_t changes = 0;
  };
  [[nodiscard]] static const char* what_name(What what);
  [[nodiscard]] static std::string what_text(What what,
                                             uint32_t op,
                                             const plan::Workload& workload);
  void note_change(const Holder& holder, Bytes bytes);

  std::vector<Holder> holders_;  // by block
  std::array<Bytes, kMemoryCategoryCount> by_category_{};
  Bytes requested_ = 0;  // of the live allocations
  int64_t allocations_ = 0;
  bool rising_ = false;  // the last allocation made a new peak that at_peak does not have yet
  std::vector<Noted> history_;
  std::array<Bytes, kMemoryCategoryCount> highest_by_category_{};  // at highest_
  uint32_t highest_changes_ = 0;                                   // the same
  using HolderKey = std::tuple<MemoryCategory, UnitId, What, uint32_t>;
  std::map<HolderKey, uint32_t> holder_ids_;
  std::vector<MemoryChange> changes_;  // MemoryChange::holder: a value of holder_ids_
};

}  // namespace shardlens::sim
