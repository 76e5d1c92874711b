#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/hook.h"
#include "core/base/result.h"
#include "core/plan/plan.h"
#include "core/schedule/action.h"

namespace shardlens::schedule {

// What the schedule needs to know of a unit.
struct UnitSpec {
  std::string name;                 // for messages
  UnitId parent = kNoUnit;
  uint32_t modules = 1;             // several: pre_forward comes at the first, post_forward after the last
  bool has_parameters = true;       // false: a root that owns nothing; no collective of its own
  bool trainable = true;            // false: every parameter frozen
  bool copy_in = false;             // the all-gather input is not the shard itself (cast, per-parameter layout)
  bool copy_out = false;            // per-parameter layout
  bool reduce_copy_in = false;      // the reduce-scatter input is not the gradient itself (cast, per-parameter layout)
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
  bool cpu_offload = false;
  // fsdp1. false: a unit that is kept after forward and takes no part in backward stays unsharded, as in PyTorch.
  bool use_orig_params = true;
};

enum class UnitState : uint8_t { kSharded, kUnsharding, kUnsharded, kSubSharded };

struct Setting {
  enum class Kind : uint8_t {
    kGradientSync, kAllReduce, kReshardAfterForward, kReshardAfterBackward, kLastBackward, kUnshardInBackward,
    kForwardPrefetch, kBackwardPrefetch,
  };
  Kind kind = Kind::kGradientSync;
  bool flag = true;
  std::vector<UnitId> units;  // prefetch lists
};
enum class Recurse : uint8_t { kNo, kYes };

// All-gather slot, previous reduction, limiter queue; may be shared by several roots, which then number their units one after the
// other, in hooks and in actions (first_unit()).
class CommState;
[[nodiscard]] std::shared_ptr<CommState> make_comm_state();

// The schedule of one root on one rank: hook event in, actions out. Pure: no tensors, clock, thread, completion, or allocation
// after construction beyond growth of `out`.
// Threads  none of its own; not re-entrant.
// Errors   a wrong sequence is an error naming unit, state and hook; state and `out` are then unchanged.
// Source   torch 2.11 _fully_shard/_fsdp_state.py, _fsdp_param_group.py (fsdp2); fsdp/_runtime_utils.py (fsdp1).
class Schedule {
 public:
  static Result<Schedule> make(std::span<const UnitSpec> units, const ScheduleOptions& options,
                               std::shared_ptr<CommState> comm = nullptr);
  Schedule(Schedule&&) noexcept;
  Schedule& operator=(Schedule&&) noexcept;
  ~Schedule();

  // Appends the actions that `event` causes.
  Result<void> on(const HookEvent& event, ActionList& out);
  Result<void> set(UnitId unit, const Setting& setting, Recurse recurse);
  [[nodiscard]] UnitState state(UnitId unit) const;
  [[nodiscard]] size_t size() const;        // number of units
  [[nodiscard]] UnitId first_unit() const;  // 0, unless the comm state is shared with roots made before

  struct Impl;  // machine.h

 private:
  explicit Schedule(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The two inputs of make() from a resolved plan.
[[nodiscard]] std::vector<UnitSpec> unit_specs(const plan::ResolvedPlan& plan);
[[nodiscard]] ScheduleOptions schedule_options(const plan::ResolvedPlan& plan);

}  // namespace shardlens::schedule
