#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/collective.h"
#include "core/plan/resolved_plan.h"
#include "core/schedule/planned/planned.h"
#include "core/workload/step_settings.h"
#include "core/workload/workload.h"
#include "profiler/analysis/analyzed_run.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/run.h"
#include "sim/calibrate/captured_steps.h"
#include "sim/engine/rank_workload.h"
#include "sim/engine/simulator.h"

namespace shardlens::sim {

// Measured times of an item of PlannedStep::order in one step of one rank.
struct ObservedItem {
  // Host time. Operator on the CPU: the time before it; operator on a device: that and the
  // operator's own call; action or hook: its own time, without waiting.
  Nanoseconds host = 0;
  Nanoseconds run = -1;  // operator on the CPU; kernels and copies on a device; -1: none seen
  Nanoseconds waited = 0;
  Nanoseconds copied = 0;  // action on the CPU: operators that it ran; part of `host`
  // Share of `run` with concurrent communication; on the CPU, while a collective moves data. On the
  // CPU also the shares of `host` and `copied`.
  double beside = 0, host_beside = 0, copied_beside = 0;
};

struct ObservedStep {  // a recorded step, in the terms of its plan
  int64_t number = 0;
  Nanoseconds duration = 0;
  std::vector<ObservedItem> items;  // by index into PlannedStep::order, of RankProgram if known
  // Host time of the training loop itself: before the first hook, between backward and the
  // optimizer's operators, after the last action. Its exposed communication is counted apart: that
  // of the gradient norm, which only sharded gradients need, and the rest.
  Nanoseconds outside = 0, norm_communication = 0, outside_communication = 0;
  size_t rank = 0;                 // position in the run
  analysis::Interval window = {};  // of the host; empty: its collectives are not limited to it
};

struct ObservedCollective {  // a recorded collective, over all matched ranks
  CollectiveKind kind = CollectiveKind::kAllGather;
  int ranks = 0;
  Bytes bytes = 0;           // size of the larger message
  Nanoseconds duration = 0;  // the shortest of the matched ranks
  double beside = 0;         // share with concurrent compute, mean of the matched ranks
  // Additional time on this rank because a peer arrived later; nullopt: the collective was not
  // matched between ranks, or the steps of this rank were not observed.
  std::optional<Nanoseconds> waited;
  size_t rank = 0;         // position in the run
  Nanoseconds called = 0;  // by the host
};

// The windows of observed steps, by rank. Those of one rank do not overlap.
//
// Complexity  logarithmic in the steps.
class StepWindows {
 public:
  // A step whose window is not known adds nothing.
  void add(const ObservedStep& step) {
    if (step.window.length() > 0) {
      of_rank_[step.rank].emplace(step.window.start, step.window.end);
    }
  }
  [[nodiscard]] bool empty() const { return of_rank_.empty(); }
  // Whether the collective was called in one of the steps of its rank.
  [[nodiscard]] bool contain(const ObservedCollective& each) const {
    const auto windows = of_rank_.find(each.rank);
    if (windows == of_rank_.end()) {
      return false;
    }
    const auto after = windows->second.upper_bound(each.called);
    return after != windows->second.begin() && each.called < std::prev(after)->second;
  }

 private:
  std::map<size_t, std::map<Nanoseconds, Nanoseconds>> of_rank_;  // end by start
};

struct StepsLeftOut {  // recorded steps that are not like the planned one
  int64_t steps = 0;   // of all ranks
  std::string reason;  // "an evaluation ran in them"
  friend bool operator==(const StepsLeftOut&, const StepsLeftOut&) = default;
};

// What a rank ran, whose operators and communications have other sizes than those of other ranks.
struct RankProgram : RankWorkload {
  schedule::PlannedStep planned;
};

// Measured times of one run's ranks, for everything that the simulator has a cost for.
//
// [Note: Whose time] The host's time of a step is cut at its instants: hooks, actions, begin and
// end of operators, the end of FSDP's ranges. Each piece is assigned to one item, so the durations,
// waits and `outside` of a step add up to the step's host time.
struct Observation {
  std::string source;
  plan::ResolvedPlan plan;
  // Of a program recorded under DDP: its plan on its own modules, of which `plan` has none.
  std::optional<plan::ResolvedPlan> program;
  plan::Workload workload;  // of the first rank
  schedule::PlannedStep planned;
  // Of every rank, the first too, where they differ (rows of experts); empty: they are alike.
  std::vector<RankProgram> of_ranks;
  plan::StepSettings settings;
  std::optional<plan::ModelConfig> config;  // of the model that ran; nullopt: unknown
  bool pytorch = false;                     // ran under PyTorch's FSDP or DDP
  bool rewritten = false;                   // gathers its parameters itself (program_units.h)
  std::string framework;                    // what drove the training loop; "": not recorded
  HostMode host = HostMode::kAhead;
  std::string emulated;  // the hardware that emulated collectives model; "": real ones
  // By CollectiveKind: the host waited for such collectives of units where it issued them.
  std::array<bool, kCollectiveKindCount> blocking{};
  std::vector<ObservedStep> steps;     // of all ranks
  std::vector<StepsLeftOut> left_out;  // the most steps first
  // No step is like the planned one: `steps` is a single pass as it ran, and `durations` are those
  // of all recorded steps.
  bool one_pass = false;
  std::vector<Nanoseconds> durations;
  std::vector<ObservedCollective> collectives;
  std::vector<trace::Diagnostic> diagnostics;  // parts of the run that were left out
  // Steps that a CUDA graph replayed: see [Note: Steps of CUDA graphs]. nullopt: none.
  std::optional<CapturedSteps> captured;
};

// Measures a capture: its steps whose hooks and actions are those of its plan; steps with another
// order are left out with a diagnostic. Operators between the hooks and actions are found by name.
// If all units are replicated there are no hooks: see [Note: Replicated steps]; steps with other
// buckets are left out.
//
// Errors  InputError for a run without plan and workload, without steps, or without a step that
// matches the plan.
[[nodiscard]] Observation observe(const analysis::AnalyzedRun& run);
[[nodiscard]] Observation observe(const trace::Run& run);

// Measures traces of PyTorch's FSDP or DDP (or of a capture without its plan): all steps of all
// ranks that have the collectives of the plan. `plan` is the run's recovered plan on a tree of its
// units (recorded_tree.h), `workload` the recovered pass, `planned` the order that the plan gives.
// If no step has it, only the recovered pass is measured, with the host's time by hook instead of
// by action, and `planned` is the recorded order itself.
//
// Errors  InputError for a trace without shapes of operators or sizes of collectives.
[[nodiscard]] Observation observe_recovered(const analysis::AnalyzedRun& run);

// Measures a run of shardlens.record, whose `planned` analysis::find_planned() has set and whose
// traces have their arguments: as observe_recovered() of traces of FSDP, with the program's own
// plan on its own modules.
//
// Errors  as observe(), and as analysis::recorded_pass().
[[nodiscard]] Observation observe_recorded(const analysis::AnalyzedRun& run);

// Step settings read from a recorded pass of PyTorch: one microbatch, and the optimizer that
// torch.optim names.
[[nodiscard]] plan::StepSettings recorded_settings(const trace::Trace& trace,
                                                   const plan::Workload& workload);

// The reason why a capture's own plan could not be read; nullptr: it could, or there is none.
[[nodiscard]] const trace::Diagnostic* unreadable_plan(const trace::Run& run);

// How many ranks a collective has if the trace does not say; 0: not known, so it is left out.
struct GroupSizes {
  int64_t all_reduce = 0, others = 0;
};

// Adds the collectives whose size is known. `busy`: for each rank, when its compute slowed
// communication. `observed`: the first ranks, whose number it is, have observed steps, so their
// waits count. `unnamed`: for collectives whose group the trace does not name.
void observe_collectives(std::span<const analysis::Timeline> timelines,
                         std::span<const analysis::IntervalSet> busy,
                         size_t observed,
                         const GroupSizes& unnamed,
                         Observation& out);

}  // namespace shardlens::sim
