#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/hook.h"
#include "core/base/result.h"
#include "core/plan/resolved_plan.h"
#include "core/schedule/action.h"

namespace shardlens::schedule {

// What the schedule needs to know of a unit.
struct UnitSpec {
  std::string name;  // for messages
  UnitId parent = kNoUnit;
  uint32_t modules = 1;         // several: see [Note: Hooks that an engine raises]
  bool has_parameters = true;   // false: a root that owns nothing; no collective of its own
  bool trainable = true;        // false: every parameter frozen
  bool copy_in = false;         // the all-gather does not read the shard itself (cast, packing)
  bool copy_out = false;        // per-parameter layout
  bool reduce_copy_in = false;  // the reduction does not read the gradient itself (cast, packing)
  bool cpu_offload = false;     // shard and gradient live on the host
  bool unshard_in_backward = true;
  plan::Reshard reshard_after_forward;
  std::optional<std::vector<UnitId>> forward_prefetch, backward_prefetch;  // explicit lists
};

struct ScheduleOptions {
  plan::Dialect dialect = plan::Dialect::kFsdp2;
  plan::Layout layout = plan::Layout::kFlat;
  plan::BackwardPrefetch backward_prefetch = plan::BackwardPrefetch::kPre;
  int64_t forward_prefetch = 0;
  bool limit_all_gathers = true;
  int64_t shard = 1, replicate = 1;
  bool force_collectives = false;  // issue collectives over groups of one rank too
  bool cpu_offload = false;        // of every unit
  // fsdp1. false: a unit that is kept after forward and takes no part in backward stays unsharded,
  // as in PyTorch.
  bool use_orig_params = true;
};

enum class UnitState : uint8_t { kSharded, kUnsharding, kUnsharded, kSubSharded };

struct Setting {
  enum class Kind : uint8_t {
    kGradientSync,
    kAllReduce,
    kReshardAfterForward,
    kReshardAfterBackward,
    kLastBackward,
    kUnshardInBackward,
    kForwardPrefetch,
    kBackwardPrefetch,
  };
  Kind kind = Kind::kGradientSync;
  bool flag = true;
  std::vector<UnitId> units;  // prefetch lists
};
enum class Recurse : uint8_t { kNo, kYes };

// All-gather slot, previous reduction, limiter queue; may be shared by several roots, which then
// number their units one after the other, in hooks and in actions (first_unit()).
class CommState;
[[nodiscard]] std::shared_ptr<CommState> make_comm_state();

// The schedule of one root on one rank: hook event in, actions out. Pure: no tensors, clock,
// thread, completion, or allocation after construction beyond growth of `out`.
//
// [Note: Hooks that an engine raises]
// - kRootPreForward, then kPreForward of the root, when the root's forward begins; also for a
//   unit that is run on its own. Every other forward lies between these and that root's
//   kPostForward. Recomputed forwards (activation checkpointing) come inside backward, with
//   `recompute` and without a kRootPreForward; a recomputation that stops early needs no
//   kPostForward.
// - A unit of several modules: kPreForward when the first of them begins, kPostForward when the
//   last ends. The schedule sees one forward.
// - kPostForward: `grads` is kNone if no output of the unit requires grad (fsdp1 then prefetches
//   it in no backward); otherwise leave it.
// - kPreBackward: the gradient of an output is about to be used; once per forward, or once per
//   output (repeats are ignored). A root without parameters raises it too, after the unit whose
//   output it returns. It comes before a recomputation that an output's gradient sets off, where
//   it can.
// - kGradsReady: from the accumulator of the unit's parameters, with the gradients there are.
//   kNone, for a use of the unit that ended without completing them, reshards only. Units for
//   which it never comes (unused, frozen) are finished by kBackwardEnd, which also reduces what
//   earlier microbatches without sync left.
// - kBackwardEnd: once, at the end of the outermost backward; not for the nested ones of
//   recomputation.
// - kOptimizerDone: after the optimizer step was issued; optional: without it the next forward's
//   all-gathers wait for all that compute was given until then.
// - kAbort: after an exception, in any state, of any unit; also frees gradients that autograd
//   has begun (kFree of a kUnshardedGrad that may not exist yet).
//
// [Note: no_shard] One rank per shard: kUseFull at each forward and kUseShard after backward, so
// that an optimizer sees slices; storage is neither allocated nor freed (with a cast, the
// low-precision copy is). World size 1 under fsdp2 is no_shard without the all-reduce, where
// PyTorch copies every shard.
//
// Threads  none of its own; not re-entrant.
// Errors   a wrong sequence is an error naming unit, state and hook; state and `out` are then
//          unchanged.
// Source   torch 2.11 _fully_shard/_fsdp_state.py, _fsdp_param_group.py (fsdp2);
//          fsdp/_runtime_utils.py (fsdp1).
class Schedule {
 public:
  static Result<Schedule> make(std::span<const UnitSpec> units,
                               const ScheduleOptions& options,
                               std::shared_ptr<CommState> comm = nullptr);
  Schedule(Schedule&&) noexcept;
  Schedule& operator=(Schedule&&) noexcept;
  ~Schedule();

  // Appends the actions that `event` causes.
  Result<void> on(const HookEvent& event, ActionList& out);
  // Takes effect from the next hook on. An empty prefetch list restores the dialect's default.
  Result<void> set(UnitId unit, const Setting& setting, Recurse recurse);
  [[nodiscard]] UnitState state(UnitId unit) const;
  [[nodiscard]] size_t size() const;  // number of units
  // Number of the first unit: 0, unless the comm state is shared with roots made before.
  [[nodiscard]] UnitId first_unit() const;

  struct Impl;  // machine.h

 private:
  explicit Schedule(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The two inputs of make() from a resolved plan.
[[nodiscard]] std::vector<UnitSpec> unit_specs(const plan::ResolvedPlan& plan);
[[nodiscard]] ScheduleOptions schedule_options(const plan::ResolvedPlan& plan);

// What the plan says of a step with several microbatches, to be called before each, after
// kGradientSync: the `last` one's backward reshards units that stay whole between them, and
// all-reduces those that are reduced within the shard axis until then. Errors as Schedule::set.
Result<void> begin_microbatch(Schedule& schedule, const plan::ResolvedPlan& plan, bool last);

}  // namespace shardlens::schedule
