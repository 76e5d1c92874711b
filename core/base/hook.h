#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/base/units.h"

namespace shardlens {

// What happens to a unit while a model runs; the input of the schedule. The live engine raises
// these from module and autograd hooks, a workload lists them, the simulator replays them.
enum class Hook : uint8_t {
  kRootPreForward,  // forward of the root begins (before its own kPreForward)
  kPreForward,
  kPostForward,
  kPreBackward,    // gradient of an output of the unit is about to be used
  kGradsReady,     // the unit's gradients are complete (its post-backward)
  kBackwardEnd,    // outermost backward ended (unit: the root)
  kOptimizerDone,  // optimizer step was issued (unit: the root)
  kUnshard,        // user asked: issue the all-gather
  kWaitUnshard,    // user asked: and wait for it
  kReshard,        // user asked: free the unsharded parameters
  kAbort,          // an exception: bring every unit back to sharded
};
inline constexpr int kHookCount = 11;

// Which of a unit's trainable parameters have a gradient when kGradsReady comes.
enum class Grads : uint8_t { kNone, kSome, kAll };

struct HookEvent {
  Hook hook = Hook::kPreForward;
  UnitId unit = 0;
  uint32_t invocation = 0;  // how many forwards of this unit came before in this step
  bool grad_mode = true;    // false: forward under no_grad
  bool recompute = false;   // a forward inside backward, for activation checkpointing
  Grads grads = Grads::kAll;

  friend bool operator==(const HookEvent&, const HookEvent&) = default;
};

// "root_pre_forward", "pre_forward", …: traces, JSON, messages.
[[nodiscard]] std::string_view name_of(Hook hook);
[[nodiscard]] std::optional<Hook> parse_hook(std::string_view name);

}  // namespace shardlens
