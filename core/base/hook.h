#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/base/units.h"

namespace shardlens {

// Events of a unit while a model runs; the input of the schedule. The live engine raises them from
// module and autograd hooks, a workload lists them, the simulator replays them.
enum class Hook : uint8_t {
  kRootPreForward,  // forward of the root begins (before its own kPreForward)
  kPreForward,
  kPostForward,
  kPreBackward,    // the gradient of an output of the unit is about to be used
  kGradsReady,     // the unit's gradients are complete (its post-backward)
  kBackwardEnd,    // the outermost backward ended (unit: the root)
  kOptimizerDone,  // the optimizer step was issued (unit: the root)
  kUnshard,        // user call: issue the all-gather
  kWaitUnshard,    // user call: wait for the all-gather
  kReshard,        // user call: free the unsharded parameters
  kAbort,          // after an exception: return every unit to the sharded state
};
inline constexpr int kHookCount = 11;

// Which of a unit's trainable parameters have a gradient at kGradsReady. kLast: those of its last
// module, whose backward runs before that of the other modules begins; kOthers: all that kLast has
// not.
enum class Grads : uint8_t { kNone, kSome, kAll, kLast, kOthers };
inline constexpr int kGradsCount = 5;

struct HookEvent {  // one call of a hook
  Hook hook = Hook::kPreForward;
  UnitId unit = 0;
  uint32_t invocation = 0;  // number of earlier forwards of this unit in this step
  bool grad_mode = true;    // false: forward under no_grad
  bool recompute = false;   // a forward inside backward, for activation checkpointing
  Grads grads = Grads::kAll;

  friend bool operator==(const HookEvent&, const HookEvent&) = default;
};

// "none", "some", "all", "last", "others"
[[nodiscard]] std::string_view name_of(Grads grads);
[[nodiscard]] std::optional<Grads> parse_grads(std::string_view name);
// "root_pre_forward", "pre_forward", …: used in traces, JSON and messages.
[[nodiscard]] std::string_view name_of(Hook hook);
[[nodiscard]] std::optional<Hook> parse_hook(std::string_view name);

}  // namespace shardlens
