#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
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

// The implementation of Schedule: its state, the functions that both dialects share, and those of
// the dialects (fsdp1.cpp, fsdp2.cpp). Unit ids are local here (0 is this root); push() converts
// them to the ids of the interface.
struct Schedule::Impl {
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
  bool optimizer_event = false;     // recorded by kOptimizerDone; the next all-gather waits for it
  uint64_t frees_before_event = 0;  // frees that the event of record_compute() covers
  bool sync = true;                 // fsdp1: not inside no_sync
  bool first_iteration = true;      // fsdp1
  std::vector<UnitId> forward_order;  // fsdp1: pre-forward order of the first iteration
  std::vector<UnitId> post_forward_order;

  // For the current hook
  ActionList* out = nullptr;
  Cause cause = Cause::kOwn;

  // ---- emit.cpp: one action each
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

  // ---- gather.cpp: parameters
  [[nodiscard]] bool sharded() const {
    return options.shard > 1 || (options.force_collectives && options.replicate == 1);
  }
  [[nodiscard]] static bool copies_in(const UnitData& unit) {
    return unit.spec.copy_in || unit.spec.cpu_offload;
  }
  [[nodiscard]] bool per_parameter(const UnitData& unit) const {
    return unit.spec.copy_out && sharded();
  }
  // Allocates, copies in and issues the all-gather; the unit is then pending.
  void issue_gather(UnitId unit);
  void limit_gathers(UnitId unit);
  // Compute waits for the pending all-gather. With copy-out, the gathered buffer is split and then
  // freed or, if `keep`, kept in the comm state's slot.
  void wait_gather(UnitId unit, bool keep);
  void flush_gather_slot();
  void use_full(UnitId unit);
  void use_shard(UnitId unit);
  void free_unsharded(UnitId unit);
  // Waits for an all-gather that was not used, and frees its buffer.
  void drop_pending(UnitId unit);

  // ---- reduce.cpp: gradients
  [[nodiscard]] BufferId reduce_input(UnitId unit, Stream stream);
  void accumulate_in_reduce_dtype(UnitId unit);
  void store(UnitId unit, Stream stream, BufferId gradient);
  void finish_offload(UnitId unit);  // the host waits for the gradient
  void fsdp1_reduce(UnitId unit);
  void fsdp2_reduce(UnitId unit);
  void release_reduction();  // compute waits for the last reduction; frees its buffers
  void finish_all_reduce(UnitId unit);

  // ---- sequence.cpp
  void begin_forward(UnitId root);
  [[nodiscard]] std::string check(const HookEvent& event) const;  // "" if the event is legal
  void record_compute();
  void wait_for_compute();  // later all-gathers wait for all earlier work of compute, or for the
                            // optimizer's event
  void optimizer_done();
  void abort(Grads grads);

  // ---- fsdp2.cpp
  void fsdp2(const HookEvent& event, UnitId unit);
  void fsdp2_unshard(UnitId unit);
  void fsdp2_wait(UnitId unit);
  void fsdp2_reshard(UnitId unit);
  void fsdp2_prefetch(UnitId target, Phase phase, Cause why);
  void fsdp2_backward_prefetch(UnitId unit);
  void fsdp2_pre_forward(UnitId unit, bool recompute);
  void fsdp2_post_forward(UnitId unit, bool recompute);
  void fsdp2_pre_backward(UnitId unit);
  void fsdp2_post_backward(UnitId unit, Grads grads);
  void fsdp2_backward_end();

  // ---- fsdp1.cpp
  void fsdp1(const HookEvent& event, UnitId unit);
  void fsdp1_unshard(UnitId unit, bool forward);
  void fsdp1_wait(UnitId unit);
  void fsdp1_reshard(UnitId unit, bool give_back, bool forward, bool grad_mode);
  [[nodiscard]] bool fsdp1_frees_in_backward(UnitId unit) const;
  void fsdp1_forward_prefetch(UnitId unit);
  void fsdp1_backward_prefetch(UnitId unit);
  void fsdp1_prefetch(UnitId target, bool forward, Cause why);
  void fsdp1_pre_forward(UnitId unit, bool recompute);
  void fsdp1_post_forward(UnitId unit, const HookEvent& event);
  void fsdp1_drop_prefetched();
  void fsdp1_pre_backward(UnitId unit);
  void fsdp1_post_backward(UnitId unit, Grads grads);
  void fsdp1_backward_end();
};

}  // namespace shardlens::schedule
