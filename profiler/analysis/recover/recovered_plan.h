#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/plan/plan.h"
#include "core/plan/workload.h"
#include "profiler/analysis/fsdp_log/ddp_log.h"
#include "profiler/analysis/fsdp_log/fsdp_log.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// What a unit's collectives say of it.
struct RecoveredUnit {
  std::string fqn;
  int64_t padded_numel = -1;  // elements that are gathered, padding included; -1: not in the trace
  Bytes gathered_bytes = 0;   // of its all-gather's output
  std::optional<DType> param_dtype, reduce_dtype;
  std::optional<bool> resharded;  // freed after forward; nullopt: the trace has no backward of it
};

// What DDP reduced by one all-reduce.
struct RecoveredBucket {
  int64_t numel = -1;  // -1: not in the trace
  Bytes bytes = 0;     // 0: not in the trace
  std::optional<DType> dtype;
  std::vector<int64_t> gradients;    // elements of each, as they came; empty: not in the trace
  std::vector<std::string> modules;  // whose gradients, as the trace names them; mostly it does not
};

// What a replicated model's tree is made of where the trace names no parameters.
struct RecoveredParameter {
  std::string module;  // "gradients.3", by the order in which they came, or "buckets.1"
  int64_t numel = 0;   // in fp32, so that the bytes are those reduced
};

// One pass as it ran. A backward operator differentiates the newest forward operator of its unit
// that no other unit's backward stands before, so that the workload plays through another plan too.
struct RecoveredWorkload {
  plan::Workload workload;
  std::vector<Interval>
      times;             // by index into Workload::order: an operator's event, a hook's range
  Interval window;       // from the first hook to the end of the optimizer's step
  int64_t unshaped = 0;  // operators without shapes in the trace
};

// The plan under which a trace was recorded, as far as the trace tells.
struct RecoveredPlan {
  plan::Plan plan;
  std::vector<RecoveredUnit> units;       // the root first, then in the order of forward
  FsdpSource source = FsdpSource::kNone;  // kNone: DDP
  int64_t world_size = 1, shard = 1;
  bool names_units = true;
  RecoveredWorkload recorded;  // units by index in `units`
  // Of DDP only: all-reduces in order; what they are made of, in the order in which it is ready;
  // microbatches of the step that the pass ends.
  std::vector<RecoveredBucket> buckets;
  std::vector<RecoveredParameter> parameters;
  int64_t accumulate = 1;
  bool sync_every_microbatch = true;
  std::vector<trace::Diagnostic> diagnostics;  // what could not be told

  [[nodiscard]] bool replicated() const { return !buckets.empty(); }
};

// From the ranges of FSDP or DDP and the arguments of collectives in the last step that ran forward
// and backward; of a trace read with ReadOptions::keep_args (else without sizes).
//
// Errors  InputError for a trace without such ranges, or in which no step ran both; it says what
// was looked for.
[[nodiscard]] RecoveredPlan recover_plan(const trace::Trace& trace);

// recovered_workload.cpp: the operators and hooks of the pass, by unit and phase.
[[nodiscard]] RecoveredWorkload recover_workload(const trace::Trace& trace,
                                                 const FsdpLog& log,
                                                 uint32_t pass,
                                                 const std::vector<uint32_t>& unit_ids,
                                                 std::vector<trace::Diagnostic>& diagnostics);

// recovered_ddp.cpp: of a trace of PyTorch's DistributedDataParallel. `log` is not empty.
[[nodiscard]] RecoveredPlan recover_ddp(const trace::Trace& trace, const DdpLog& log);

// Gives the units of an FSDP1 trace, which has no names, those of the model's blocks, if there are
// as many and, where sizes are in the trace, as large. Returns whether it did.
bool name_units(RecoveredPlan& recovered, const plan::ModuleTree& tree);

}  // namespace shardlens::analysis
