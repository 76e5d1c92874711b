#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/plan/plan.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// A GPU type with a software stack, common to several published training runs. Its constants were
// fitted once, by scripts/fit_published_runs.py, to the runs in FittedStacks::fitted.
struct Stack {
  std::string name;
  bool is_default = false;             // named specs of its hardware have its constants by default
  std::vector<std::string> gpu_types;  // prefixes of a run's GPU type
  std::vector<std::string> sources;    // substrings of a run's source; empty: any source
  std::vector<std::string> notes;      // substrings of a run's notes; empty: any notes
  HardwareSpec hardware;               // one node, with the fitted constants
  plan::Plan plan;                     // dialect, prefetch and precision that the stack trains with
};

struct FittedStacks {                      // stacks with constants fitted to published runs
  std::vector<Stack> stacks;               // the first one that matches a run is used
  std::unordered_set<std::string> fitted;  // PublishedRun::identity of the runs used
};

// The built-in stacks, and those of a text in the same format.
// Errors: InputError with file and JSON pointer.
[[nodiscard]] const FittedStacks& builtin_stacks();
[[nodiscard]] FittedStacks parse_stacks(std::string_view json, const std::string& source);

// The stack of a run; nullptr: no stack matches it.
[[nodiscard]] const Stack* find_stack(const FittedStacks& stacks,
                                      std::string_view gpu_type,
                                      std::string_view source,
                                      std::string_view notes);

// The stacks that run the operators of transformers or torchtitan (plan::Program). They have no
// constants here.
inline constexpr std::string_view kTransformersStack = "transformers";
inline constexpr std::string_view kTorchtitanStack = "torchtitan";

// What --stack calls a spec without the constants of a stack.
inline constexpr std::string_view kBareStack = "bare";

// The stack of a named spec if no other one is chosen; nullptr: no stack was fitted to runs on that
// GPU, or `hardware` is a file.
[[nodiscard]] const Stack* default_stack(std::string_view hardware);
// load_hardware(), with the constants of the default stack.
[[nodiscard]] HardwareSpec default_hardware(const std::string& hardware);

// `hardware` with the host's time of PyTorch's FSDP (SoftwareSpec::unit_us), for programs that
// PyTorch runs: --stack transformers and torchtitan, and model files.
[[nodiscard]] HardwareSpec run_by_pytorch(HardwareSpec hardware);

// `hardware` with the constants of a built-in stack.
// Errors: InputError naming the most similar stack, or the GPU that the stack was fitted to.
[[nodiscard]] HardwareSpec under_stack(HardwareSpec hardware, std::string_view name);

}  // namespace shardlens::sim
