#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/plan/plan.h"
#include "core/workload/step_settings.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// Of which kinds of work a stack's own runs determine the constants. Others it has from another
// stack, so that its runs say nothing of how far these may be off.
struct FittedKinds {
  bool products = true, attention = true, memory = true, collectives = true, step = true;
};

// A GPU type with a software stack, common to several published training runs. Its constants were
// fitted once, by scripts/fit_published_runs.py, to the runs in FittedStacks::fitted.
struct Stack {
  std::string name;
  bool is_default =
      false;             // GPUs of its type have its constants by default; others, of the nearest
  bool pytorch = false;  // fitted to the operators of PyTorch's programs, not to this engine's
  int64_t rows = 0;      // published runs that it was fitted to
  FittedKinds fits;
  std::vector<std::string> gpu_types;  // prefixes of a run's GPU type
  std::vector<std::string> sources;    // substrings of a run's source; empty: any source
  std::vector<std::string> notes;      // substrings of a run's notes; empty: any notes
  HardwareSpec hardware;               // one node, with the fitted constants
  plan::Plan plan;                     // dialect, prefetch and precision that the stack trains with
};

struct FittedStacks {                      // stacks with constants fitted to published runs
  std::vector<Stack> stacks;               // the first one that matches a run is used
  std::unordered_set<std::string> fitted;  // PublishedRun::identity of the runs used
  // What constants may be off on a GPU without runs of its own, those of the bare hardware, and
  // those that were assumed before any fit.
  ConstantRanges borrowed, ideal;
  SoftwareSpec assumed;
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

// The value of --stack for the operators of transformers or torchtitan (plan::Program), under the
// stack with Stack::pytorch of the GPU or of the nearest one.
inline constexpr std::string_view kTransformersStack = "transformers";
inline constexpr std::string_view kTransformersFlashStack = "transformers-flash-2";
inline constexpr std::string_view kTorchtitanStack = "torchtitan";
inline constexpr std::string_view kTorchtitan2024Stack = "torchtitan-2024";
inline constexpr std::string_view kTorchtitan03Stack = "torchtitan-0.3";
inline constexpr std::string_view kSimpleFsdpStack = "simple-fsdp";
inline constexpr std::string_view kGraphTrainerStack = "graph-trainer";

// The value of --stack for a spec without the constants of a stack.
inline constexpr std::string_view kBareStack = "bare";

// The program that --stack names; nullopt: it names a stack, or is "".
[[nodiscard]] std::optional<plan::Program> program_of_stack(std::string_view stack);
// How the optimizer of the program runs by default: foreach is what torch.optim does on a GPU;
// torchtitan's is fused.
[[nodiscard]] plan::OptimizerImpl optimizer_by_default(plan::Program program);
// All that --stack takes: the built-in stacks, the programs, and "bare".
[[nodiscard]] std::vector<std::string> stack_names();

// Whether the stack was fitted to runs on this type of GPU.
[[nodiscard]] bool is_of(const Stack& stack, const HardwareSpec& hardware);

// The default stack with these operators whose GPU is most similar to the one of `hardware`: the
// same one, or of the nearest rate of products and bandwidth of memory. nullptr: there is none.
[[nodiscard]] const Stack* nearest_stack(const std::vector<const Stack*>& among,
                                         const HardwareSpec& hardware,
                                         bool pytorch);
// nearest_stack() of the built-in ones for --hardware. nullptr: it is a file, whose constants are
// its own.
[[nodiscard]] const Stack* default_stack(std::string_view hardware, bool pytorch = false);

// The stack whose constants --stack gives a model on --hardware: that of the name, or the default
// one for "" and for programs. `pytorch`: as default_stack(). nullptr: none of them, or "bare".
// Errors: InputError naming the most similar one.
[[nodiscard]] const Stack* chosen_stack(std::string_view hardware,
                                        std::string_view stack,
                                        bool pytorch);

// `hardware` with the constants of the stack, and with what they may be off: less, the more runs
// the stack was fitted to; more on another GPU.
[[nodiscard]] HardwareSpec under_stack(HardwareSpec hardware,
                                       const Stack& stack,
                                       const FittedStacks& stacks = builtin_stacks());
// `hardware` with its own constants, and with what steps take more under real software.
[[nodiscard]] HardwareSpec as_bare(HardwareSpec hardware);
// load_hardware(), with the constants of chosen_stack(); `pytorch`: with the host's time of
// PyTorch's FSDP (SoftwareSpec::unit_us) too, for programs that PyTorch runs, and with the kernel
// of attention that they call: cuDNN's where the GPU has it.
// Source  torchtitan 0.2.2, models/attention.py (cuDNN first; in December 2024 FlashAttention-2);
//         torch 2.11, whose default ran traces/operators-h200.csv. "transformers-flash-2":
//         attn_implementation="flash_attention_2", which packed samples need.
[[nodiscard]] HardwareSpec hardware_under(const std::string& hardware,
                                          std::string_view stack,
                                          bool pytorch);
[[nodiscard]] HardwareSpec default_hardware(const std::string& hardware, bool pytorch = false);

// The built-in stack of that name. Errors: InputError naming the most similar one.
[[nodiscard]] const Stack& stack_named(std::string_view name);

}  // namespace shardlens::sim
