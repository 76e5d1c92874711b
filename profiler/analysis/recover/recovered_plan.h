#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/plan/plan.h"
#include "core/workload/workload.h"
#include "profiler/analysis/fsdp_log/ddp_log.h"
#include "profiler/analysis/fsdp_log/fsdp_log.h"
#include "profiler/analysis/fsdp_log/sections.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"
#include "profiler/trace/parallel_axes.h"

namespace shardlens::analysis {

// The facts about a unit that follow from its collectives.
struct RecoveredUnit {
  std::string fqn;            // core/plan/parameter_groups.h
  int64_t padded_numel = -1;  // gathered elements including padding; -1: not in the trace
  Bytes gathered_bytes = 0;   // size of its all-gather's output
  std::optional<DType> param_dtype, reduce_dtype;
  std::optional<bool> resharded;  // freed after forward; nullopt: its backward is not in the trace
};

// The gradients that DDP reduced with one all-reduce.
struct RecoveredBucket {
  int64_t numel = -1;  // -1: not in the trace
  Bytes bytes = 0;     // 0: not in the trace
  std::optional<DType> dtype;
  // Elements of each, in order of completion; empty: not in the trace.
  std::vector<int64_t> gradients;
  std::vector<std::string> modules;  // modules of the gradients, if the trace names them
};

// An element of a replicated model's module tree if the trace names no parameters.
struct RecoveredParameter {
  std::string module;  // "gradients.3", in order of completion, or "buckets.1"
  int64_t numel = 0;   // in fp32, chosen so that the bytes equal those reduced
};

// One pass as it ran. Each backward operator is assigned the forward operator that it
// differentiates, so that the workload can be simulated with another plan too: the newest forward
// operator of its unit that no backward run of the unit has used before.
struct RecoveredWorkload {
  plan::Workload workload;
  // By index into Workload::order: an operator's event, a hook's range.
  std::vector<Interval> times;
  Interval window;       // from the first hook to the end of the optimizer's step
  int64_t unshaped = 0;  // operators without shapes in the trace
};

// The plan with which a trace was recorded, as far as it can be recovered from the trace.
struct RecoveredPlan {
  plan::Plan plan;
  std::vector<RecoveredUnit> units;       // the root first, then in the order of forward
  FsdpSource source = FsdpSource::kNone;  // kNone: DDP
  int64_t world_size = 1;                 // ranks of a pipeline's stage
  int64_t shard = 1;                      // ranks over which most units are sharded
  std::vector<trace::ModelAxis> axes;     // along which the model is divided
  bool names_units = true;
  RecoveredWorkload recorded;  // units by index in `units`
  // DDP only: all-reduces in order; their parameters, in the order in which they are ready; number
  // of microbatches of the step that ends with the recorded pass.
  std::vector<RecoveredBucket> buckets;
  std::vector<RecoveredParameter> parameters;
  int64_t accumulate = 1;
  bool sync_every_microbatch = true;
  std::vector<trace::Diagnostic> diagnostics;  // what could not be determined

  [[nodiscard]] bool replicated() const { return !buckets.empty(); }
};

// The diagnostic of a trace of DDP in which backward runs operators of forward again.
inline constexpr std::string_view kUnnamedCheckpoints =
    "backward runs operators of forward again, so modules are checkpointed; a trace of DDP does "
    "not "
    "name them, and the plan has none (shardlens.record writes them to plan.json)";

// Recovers the plan from the ranges of FSDP or DDP, or from the units of a program that gathers its
// parameters itself (program_units.h), and the arguments of collectives, from the last
// complete step with forward and backward. The trace must be read with ReadOptions::keep_args
// (otherwise sizes are missing).
//
// Errors  InputError for a trace without such ranges, or without a step with forward and backward;
//         the message lists what was searched for. Those of with_program_units().
[[nodiscard]] RecoveredPlan recover_plan(const trace::Trace& trace);
// The same with the trace's timeline, and with its log of DDP if the timeline has none of FSDP.
[[nodiscard]] RecoveredPlan recover_plan(const trace::Trace& trace,
                                         const Timeline& timeline,
                                         const DdpLog& ddp);

// The hook at the start of a call of FSDP, at its end for kPostForward; nullopt: an action.
[[nodiscard]] std::optional<Hook> hook_of(FsdpCall call);

// The operators and hooks of the pass, by unit and phase. `sections`: made from `log`. Implemented
// in recovered_workload.cpp, as hook_of().
[[nodiscard]] RecoveredWorkload recover_workload(const trace::Trace& trace,
                                                 const FsdpLog& log,
                                                 const Sections& sections,
                                                 uint32_t pass,
                                                 const std::vector<uint32_t>& unit_ids,
                                                 std::vector<trace::Diagnostic>& diagnostics);

// Recovers the plan of a trace of PyTorch's DistributedDataParallel. `log` must not be empty.
// Implemented in recovered_ddp.cpp.
[[nodiscard]] RecoveredPlan recover_ddp(const trace::Trace& trace, const DdpLog& log);

// Names the units of an FSDP1 trace, which has no names, after the model's blocks, if their numbers
// are equal and their sizes (where in the trace) match. Returns whether it did. Implemented in
// named_units.cpp.
bool name_units(RecoveredPlan& recovered, const plan::ModuleTree& tree);

}  // namespace shardlens::analysis
