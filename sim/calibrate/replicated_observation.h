#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "profiler/analysis/fsdp_log/ddp_log.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"
#include "sim/calibrate/observation.h"

namespace shardlens::sim {

// Throws InputError if `plan` shards parameters that were recorded unsharded, under DDP.
void require_replicated(const Observation& recorded, const plan::ResolvedPlan& plan);

// The plan for resolve() on the recorded modules. Of a run of DDP these are only names of
// gradients, so the activation checkpoints with which it was recorded are left out: its operators
// have them.
//
// Errors  InputError, for a run of DDP, if the plan has other activation checkpoints, or units that
//         are sharded.
[[nodiscard]] plan::Plan on_recorded_modules(const Observation& recorded, plan::Plan plan);

struct TraceIndex;

// Reads the steps of a rank whose units are all replicated, under the plan of `about`.
//
// [Note: Replicated steps] Without hooks, operators are found by name in the section in which they
// are planned: forward and loss, backward, optimizer; the n-th planned operator of a name is the
// n-th of that name that ran there. The host's time between two operators is assigned to the second
// one; the call of an all-reduce and the Reducer's copies into a bucket to the bucket's launch; and
// the time after the last node of autograd to the bucket's wait.
//
// Ownership  the arguments must outlive the reader.
class ReplicatedReader {
 public:
  ReplicatedReader(const trace::Trace& trace,
                   const analysis::Timeline& timeline,
                   const Observation& about);
  ~ReplicatedReader();

  // `passes`: the step's microbatches. nullopt: their number or their buckets are not those of the
  // plan's steady step.
  [[nodiscard]] std::optional<ObservedStep> read(
      const analysis::Step& step, const std::vector<const analysis::DdpPass*>& passes) const;

  // The passes that begin within the step.
  [[nodiscard]] static std::vector<const analysis::DdpPass*> passes_of(const analysis::Step& step,
                                                                       const analysis::DdpLog& log);

 private:
  // Positions in PlannedStep::order.
  struct Microbatch {
    std::vector<size_t> forward, backward, launches, waits;
    size_t backward_end = 0;
  };
  void find_positions();
  [[nodiscard]] bool same_buckets(const analysis::DdpPass& pass, const Microbatch& planned) const;

  std::unique_ptr<const TraceIndex> index_;
  const Observation& in_;
  std::vector<Microbatch> microbatches_;
  std::vector<size_t> optimizer_;
};

// Measures a DDP trace: its steps that match the recovered plan, or, if none does, the step that
// ends with the recovered pass. As observe_recovered().
[[nodiscard]] Observation observe_replicated(const analysis::AnalyzedRun& run);
// Adds the steps and collectives of a capture whose units are all replicated. false: the capture
// has no Reducer, like a simulated run.
[[nodiscard]] bool observe_replicated_steps(const analysis::AnalyzedRun& run, Observation& out);

// Gloo uses several threads for one group, so collectives of a rank run concurrently and slow each
// other down; a communicator of the simulator runs one collective at a time. So each collective is
// counted only from the end of the one that ended before it.
void serialize_collectives(std::vector<analysis::Timeline>& timelines);

}  // namespace shardlens::sim
