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

// The properties of a unit that the schedule needs.
struct UnitSpec {
  std::string name;  // for messages
  UnitId parent = kNoUnit;
  uint32_t modules = 1;                // several: see [Note: Hooks that an engine raises]
  uint32_t group = 0, groups = 1;      // as in plan::Unit: see [Note: Groups of a unit]
  bool has_parameters = true;          // false: a root without parameters; it has no collectives
  bool trainable = true;               // false: all parameters are frozen
  bool copy_in = false;                // the all-gather reads a copy of the shard (cast, packing)
  bool copy_out = false;               // per-parameter layout
  bool one_rank = false;               // `gather` has one: see [Note: Groups of one rank]
  bool reduce_cast = false;            // gradients are reduced in another dtype than their own
  bool reduce_copy_in = false;         // the reduction reads a copy of the gradient (cast, packing)
  bool cpu_offload = false;            // shard and gradient are on the host
  bool optimizer_in_backward = false;  // not with cpu_offload
  bool unshard_in_backward = true;
  plan::Reshard reshard_after_forward;
  // As in plan::Unit.
  mesh::GroupId gather = plan::kShardGroup, reduce = plan::kShardGroup,
                replicate = plan::kReplicateGroup, kept = mesh::kNoGroup;
  std::optional<std::vector<UnitId>> forward_prefetch, backward_prefetch;  // explicit lists
};

struct ScheduleOptions {  // what a plan says about all units
  plan::Dialect dialect = plan::Dialect::kFsdp2;
  plan::Layout layout = plan::Layout::kFlat;
  plan::BackwardPrefetch backward_prefetch = plan::BackwardPrefetch::kPre;
  int64_t forward_prefetch = 0;
  bool limit_all_gathers = true;
  int64_t shard = 1, replicate = 1;
  bool force_collectives = false;  // issue collectives over groups of one rank too
  bool cpu_offload = false;        // for every unit
  // fsdp1. false: a unit that is kept after forward and has no backward stays unsharded, as in
  // PyTorch.
  bool use_orig_params = true;
  // fsdp2. Not kAutomatic: the backward that is set as the last one (Setting::Kind::kLastBackward)
  // ends the step's backward, the others only end their own.
  plan::Finalization finalization = plan::Finalization::kAutomatic;
  // fsdp2. A post-backward without gradients reduces zeros.
  bool reduces_unused = false;
  // fsdp2. Reductions whose inputs may exist at the same time.
  int64_t reduce_inputs = 1;
  // fsdp2, per_parameter. Collectives are operators of a traced step, which allocates, packs and
  // unpacks on the compute stream only (plan::is_traced()).
  bool traced = false;
};

enum class UnitState : uint8_t { kSharded, kUnsharding, kUnsharded, kSubSharded };

struct Setting {  // a change between or within steps, as FSDP's setters make it
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

// All-gather slot, last reduction and limiter queue. Several roots may share it; the unit ids of
// each root, in hooks and actions, then follow those of the roots before it (first_unit()).
class CommState;
struct Dialect;
[[nodiscard]] std::shared_ptr<CommState> make_comm_state();

// The schedule of one root on one rank: converts hook events to actions. Pure: it has no tensors,
// clock, threads or completions, and allocates only for the growth of `out` after construction.
//
// [Note: Hooks that an engine raises]
// - kRootPreForward, then kPreForward of the root, when the root's forward begins; also for another
//   unit if its forward is called directly. Every other forward is between these and that root's
//   kPostForward. Recomputed forwards (activation checkpointing) are inside backward, with
//   `recompute` and without kRootPreForward; a recomputation that stops early needs no
//   kPostForward.
// - For a unit of several modules: kPreForward when the first of them begins, kPostForward when the
//   last ends. The schedule gets one forward.
// - kPostForward: `grads` is kNone if no output of the unit requires grad (fsdp1 then does not
//   prefetch it in backward); otherwise leave the default.
// - kPreBackward: the gradient of an output is about to be used. Raised once per forward or once
//   per output (repeats are ignored). A root without parameters raises it too, after the unit whose
//   output it returns. If possible, it precedes a recomputation that an output's gradient causes.
// - kGradsReady: from the accumulator of the unit's parameters; `grads` states which of them have
//   gradients. kNone, for a use of the unit that ended without completing its gradients, only
//   reshards. For units without this hook (unused, frozen), kBackwardEnd finishes the backward; it
//   also reduces the gradients of earlier microbatches without sync.
// - kBackwardEnd: once, at the end of the outermost backward; not for the nested backwards of
//   recomputation.
// - kOptimizerDone: after the optimizer step was issued. Optional: without it, the all-gathers of
//   the next forward wait for all work issued on compute before that forward.
// - kAbort: after an exception, in any state, for any unit. Also frees gradients that autograd
//   has started to make (kFree of a kUnshardedGrad that may not exist yet). If `grads` is kSome and
//   no backward is running, gradients that earlier backwards without sync have left are kept.
//
// [Note: Groups of a unit] A unit whose parameters are in several groups has an id for each, one
// after the other, and every hook is raised for each of them: kGradsReady for the last one first,
// because the first group's views are made first, all others in order. Prefetch lists are those of
// the last group, so that they are read when all groups have been waited for. As in torch 2.13,
// fsdp2 only: the second group prefetches all groups of the previous unit, last first; only the
// last group waits for the reductions of earlier units.
//
// [Note: Groups of one rank] There is no collective over a group of one rank. With copy_out, as in
// PyTorch, the unit's parameters are nevertheless copies and its gradients are copied twice: the
// shard when compute waits for the parameters, and the input of the reduction in place of the
// reduce-scatter (torch 2.11, FSDPParamGroup.wait_for_unshard(), foreach_reduce()). Without it the
// shard is the parameter. Of the units of a plan, only those of experts may be in such a group.
//
// [Note: Gradients of the last module] kGradsReady with kLast: a program has computed its loss with
// the unit's last module, which it calls by itself after the forward of the root, and
// differentiated that before backward begins. Between kUnshard and kReshard of the unit, which the
// program calls, the gradients of that module are reduced, also without sync, and compute waits for
// the reduction (torch 2.15, FSDPParamGroup.post_backward: is_partial_group_backward). The
// kGradsReady of the unit's backward is then about kOthers. fsdp2 only.
//
// [Note: no_shard] One rank per shard: kUseFull at each forward and kUseShard after backward, so
// that an optimizer gets slices. Storage is neither allocated nor freed, except for the
// low-precision copy if there is a cast. World size 1 in fsdp2 is no_shard without the all-reduce;
// PyTorch copies every shard instead.
//
// Threads  creates none; not re-entrant.
// Errors   a wrong sequence of hooks is an error naming unit, state and hook; it does not change
//          state and `out`.
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
  // Id of the first unit: 0, unless the comm state is shared with roots that were made before.
  [[nodiscard]] UnitId first_unit() const;

 private:
  explicit Schedule(std::unique_ptr<Dialect> dialect);
  std::unique_ptr<Dialect> dialect_;
};

// The two inputs of make() for a resolved plan.
[[nodiscard]] std::vector<UnitSpec> unit_specs(const plan::ResolvedPlan& plan);
[[nodiscard]] ScheduleOptions schedule_options(const plan::ResolvedPlan& plan, bool traced = false);

// Applies the plan's settings for a step with several microbatches. Call it before each microbatch,
// after setting kGradientSync. Only the backward of the `last` one reshards units with
// reshard_after_backward false, all-reduces units with requires_all_reduce false, and ends the
// step's backward if the program does (backward_finalization). Errors: those of Schedule::set.
Result<void> begin_microbatch(Schedule& schedule, const plan::ResolvedPlan& plan, bool last);

}  // namespace shardlens::schedule
