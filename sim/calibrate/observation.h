#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/collective.h"
#include "core/plan/resolved_plan.h"
#include "core/plan/step_settings.h"
#include "core/plan/workload.h"
#include "core/schedule/planned.h"
#include "profiler/analysis/recover/recovered_plan.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/run.h"
#include "sim/engine/simulator.h"

namespace shardlens::sim {

// What an item of PlannedStep::order took in one step of one rank.
struct ObservedItem {
  // Of the host alone: for an operator on the CPU what came before it, on a device that and the
  // operator's own call; for an action or a hook its own time, without what it waited.
  Nanoseconds host = 0;
  Nanoseconds run = -1;  // operator on the CPU; kernels and copies on a device; -1: none seen
  Nanoseconds waited = 0;
  Nanoseconds copied = 0;  // of an action on the CPU, part of `host`: operators that it ran
  // Share of `run` with communication beside; on the CPU with data on its way. There `host` and
  // `copied` have such shares too.
  double beside = 0, host_beside = 0, copied_beside = 0;
};

struct ObservedStep {
  int64_t number = 0;
  Nanoseconds duration = 0;
  std::vector<ObservedItem> items;  // by index into PlannedStep::order
  // Before the first hook, between backward and the optimizer's operators, behind the last action:
  // the loop itself, with its share of exposed communication (the norm of the gradients).
  Nanoseconds outside = 0, outside_communication = 0;
};

struct ObservedCollective {
  CollectiveKind kind = CollectiveKind::kAllGather;
  int ranks = 0;
  Bytes bytes = 0;           // of the larger message
  Nanoseconds duration = 0;  // the shortest of all ranks that were matched
  double beside = 0;         // share with compute beside, mean of the ranks that were matched
  // How much longer it took here, because a peer came later; nullopt: not matched, or a rank whose
  // steps are not among those observed.
  std::optional<Nanoseconds> waited;
};

// What the ranks of one run took for each thing that the simulator has a cost for.
//
// [Note: Whose time] The host's time of a step is cut at its instants: hooks, actions, begin and
// end of operators, the end of FSDP's ranges. Each cut belongs to one item, so that durations,
// waits and `outside` of a step sum to it.
struct Observation {
  std::string source;
  plan::ResolvedPlan plan;
  plan::Workload workload;
  schedule::PlannedStep planned;
  plan::StepSettings settings;
  std::optional<plan::ModelConfig> config;  // of the model that ran; nullopt: not known
  HostMode host = HostMode::kAhead;
  std::string emulated;             // the hardware that collectives were modelled on; "": none
  std::vector<ObservedStep> steps;  // of all ranks
  std::vector<ObservedCollective> collectives;
  std::vector<trace::Diagnostic> diagnostics;  // what was left out
};

// Of a capture: steps whose hooks and actions are those of its plan; another order is left out with
// a diagnostic. Operators are found by name between them. Where all units are replicated there are
// no hooks: see [Note: Replicated steps]; steps with other buckets are left out.
//
// Errors  InputError for a run without plan and workload, without steps, or in which no step is as
// planned.
[[nodiscard]] Observation observe(const trace::Run& run);

// Of a trace of PyTorch's FSDP or DDP (or of ours without its plan): the pass that was recovered,
// with the host's time by hook instead of by action (of DDP: by bucket). `plan` is the recovered
// one on a tree of its units (recorded_tree.h), and `planned` the recorded order itself; of DDP the
// plan's, which repeats it. Errors  InputError for a trace without shapes of operators or sizes of
// collectives.
[[nodiscard]] Observation observe(const trace::Run& run, const analysis::RecoveredPlan& recovered);

// What a recorded pass of PyTorch's tells of its step: one microbatch, and the optimizer that
// torch.optim names.
[[nodiscard]] plan::StepSettings recorded_settings(const trace::Trace& trace,
                                                   const plan::Workload& workload);

// Why a capture's own plan could not be read; nullptr: it could, or there is none.
[[nodiscard]] const trace::Diagnostic* unreadable_plan(const trace::Run& run);

// Adds the collectives whose size is known. `busy`: of each rank, when it kept what communication
// needs. Of the first `observed` ranks steps were observed too, so that what they waited counts.
void observe_collectives(std::span<const analysis::Timeline> timelines,
                         std::span<const analysis::IntervalSet> busy,
                         size_t observed,
                         Observation& out);

}  // namespace shardlens::sim
