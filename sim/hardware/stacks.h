#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/plan/plan.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// What published training runs have in common: a GPU type under a software stack. Its constants
// were fitted once, by scripts/fit_published_runs.py, on the runs that FittedStacks names.
struct Stack {
  std::string name;
  std::vector<std::string> gpu_types;  // beginnings of the type that a run names
  std::vector<std::string> sources;    // parts of its source; none: any
  std::vector<std::string> notes;      // parts of its notes; none: any
  HardwareSpec hardware;               // of one node, with the fitted constants
  plan::Plan plan;                     // dialect, prefetch and precision that the stack trains with
};

struct FittedStacks {
  std::vector<Stack> stacks;               // the first that fits a run counts
  std::unordered_set<std::string> fitted;  // PublishedRun::identity of the runs used
};

// Those that come with Shardlens, and a file in the same form.
// Errors: InputError with file and JSON pointer.
[[nodiscard]] const FittedStacks& builtin_stacks();
[[nodiscard]] FittedStacks parse_stacks(std::string_view json, const std::string& source);

// The stack of a run; nullptr: none fits.
[[nodiscard]] const Stack* find_stack(const FittedStacks& stacks,
                                      std::string_view gpu_type,
                                      std::string_view source,
                                      std::string_view notes);

// `hardware` as a built-in stack reaches it: takes over its constants.
// Errors: InputError naming the nearest stack, or the GPU that it is of.
[[nodiscard]] HardwareSpec under_stack(HardwareSpec hardware, std::string_view name);

}  // namespace shardlens::sim
