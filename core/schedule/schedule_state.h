#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/schedule/action.h"
#include "core/schedule/comm_state.h"
#include "core/schedule/schedule.h"

namespace shardlens::schedule {

// The phase of a unit within a step; FSDP1 and FSDP2 call it the training state.
enum class Phase : uint8_t { kIdle, kForward, kPreBackward, kPostBackward };

enum class AfterForward : uint8_t { kKeep, kFree, kSubMesh };

// Events that a unit records. Each has one fixed id and is recorded many times, like a CUDA event.
enum class UnitEvent : uint32_t {
  kCopiedIn,
  kGathered,
  kCopiedOut,
  kSubSharded,
  kGradReady,
  kReduced,
  kStored,
  kToHost
};
inline constexpr uint32_t kUnitEventCount = 8;

// The post-forward order is cleared after this many forwards without a backward, so that it does
// not grow without bound in a long evaluation (PyTorch's does). Only a prefetch hint is lost.
inline constexpr uint32_t kForwardsRemembered = 64;

// One unit: settings and state.
struct UnitData {
  UnitSpec spec;
  // Settings
  AfterForward after_forward = AfterForward::kFree;
  bool sync = true, all_reduce = true, reshard_after_backward = true, unshard_in_backward = true;
  std::vector<UnitId> forward_prefetch, backward_prefetch;  // empty: the dialect's default
  // State
  UnitState state = UnitState::kSharded;
  Phase phase = Phase::kIdle;
  bool pending = false;          // an all-gather was issued and not yet waited for
  bool full = false;             // the parameters are unsharded (kUseFull after kUseShard)
  bool allocated = false;        // kUnsharded has storage
  bool sub_sharded = false;      // kSubShard contains the parameters' data
  bool sub_shard_event = false;  // the copy into kSubShard has not been waited for
  bool has_grad = false;     // an unsharded gradient is not yet reduced (accumulation without sync)
  bool unfinished = false;   // a post-backward that reduces is missing
  bool partial = false;      // kReduceOutput contains a partial sum
  bool accumulated = false;  // kReduceInput contains gradients of earlier backwards without sync
  EventId to_host = kNoEvent;  // the gradient's copy to the host, not yet waited for
  bool stored = false;         // the all-reduce of the gradient has not been waited for
  bool stepped = false;        // kStep was issued in this backward
  bool ran_forward = false;    // since construction or abort
  std::array<uint32_t, kBufferKindCount> generations{};
  std::vector<uint32_t> order;  // fsdp2: its positions in the post-forward order, latest last
  // fsdp1
  std::optional<uint32_t> pre_forward_index, post_forward_index;
  bool prefetched = false, needs_pre_forward = false, needs_pre_backward = false,
       ran_pre_backward = false;
  bool skipped_sharded_views = false;  // kept after forward: the end of backward reshards it
  bool points_to_shard = true;
};

// See [Note: Groups of one rank].
[[nodiscard]] inline bool is_copied(const UnitSpec& unit) {
  return unit.one_rank && unit.copy_out;
}
[[nodiscard]] inline bool is_sharded(const UnitSpec& unit, const ScheduleOptions& options) {
  const bool one = unit.one_rank || options.shard == 1;
  return !one || is_copied(unit) || (options.force_collectives && options.replicate == 1);
}

// The state of a schedule, and the actions that it adds for the current hook. Unit ids are local
// here (0 is this root); push() converts them to the ids of the interface.
//
// The implementation of Schedule is in layers, each a class that uses those below: ScheduleState,
// Gathers, Reductions, Dialect, and on top Fsdp1 or Fsdp2.
struct ScheduleState {
  ScheduleOptions options;
  std::shared_ptr<CommState> comm;
  std::vector<UnitData> units;
  UnitId base = 0;  // See [Note: Numbering under sharing]
  EventId first_event = 0;
  bool any_copy_in = false;

  // Per-root state
  UnitId forward_root = kNoUnit;  // unit between its kRootPreForward and its kPostForward
  bool backward = false;          // between the first kPreBackward and kBackwardEnd
  bool last_backward = true;
  std::vector<UnitId> post_forward_order;

  // For the current hook
  ActionList* out = nullptr;
  Cause cause = Cause::kOwn;
  Grads grads = Grads::kAll;  // of its reductions

  void push(Op op,
            Stream stream,
            UnitId unit,
            BufferId buffer = {},
            EventId event = kNoEvent,
            mesh::GroupId group = mesh::kNoGroup);
  BufferId alloc(BufferKind kind, UnitId unit, Stream stream);
  void free(BufferId buffer, Stream stream = Stream::kCompute);
  [[nodiscard]] BufferId current(BufferKind kind, UnitId unit) const;
  // The gradient that autograd has made. The next gradient is a new generation.
  BufferId take_grad(UnitId unit);
  [[nodiscard]] EventId event_of(UnitId unit, UnitEvent event) const;
  EventId record(Stream stream, UnitId unit, UnitEvent event);
  void wait(Stream stream, UnitId unit, EventId event);
};

}  // namespace shardlens::schedule
