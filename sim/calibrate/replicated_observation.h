#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "profiler/analysis/fsdp_log/ddp_log.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"
#include "sim/calibrate/observation.h"

namespace shardlens::sim {

// Whether no unit of the plan is sharded: then there are no hooks in a trace.
[[nodiscard]] bool is_replicated(const plan::ResolvedPlan& plan);

// InputError where `plan` shards what a DDP trace recorded whole.
void require_replicated(const Observation& recorded, const plan::ResolvedPlan& plan);

struct TraceIndex;

// Reads the steps of a rank whose units are all replicated, under the plan of `about`.
//
// [Note: Replicated steps] Without hooks, operators are found by name in the section that they are
// planned in: forward and loss, backward, optimizer; the n-th of a name is the n-th of that name
// that ran there. The host's time between two of them goes to the second; the call of an all-reduce
// and the Reducer's copies go to the bucket's launch, and what comes behind the last node of
// autograd to its wait.
//
// Ownership  refers to its arguments.
class ReplicatedReader {
 public:
  ReplicatedReader(const trace::Trace& trace,
                   const analysis::Timeline& timeline,
                   const Observation& about);
  ~ReplicatedReader();

  // `passes`: the step's microbatches. nullopt: they reduce other buckets than the plan's steady
  // step, or there are more or fewer of them.
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

// Of a DDP trace: the step that the recovered pass ends. As observe(run, recovered).
[[nodiscard]] Observation observe_replicated(const trace::Run& run,
                                             const analysis::RecoveredPlan& recovered);
// Adds the steps and collectives of a capture whose units are all replicated. false: it has no
// Reducer, as simulated runs.
[[nodiscard]] bool observe_replicated_steps(const trace::Run& run,
                                            std::vector<analysis::Timeline>& timelines,
                                            Observation& out);

// Gloo serves one group with several threads, so that collectives of a rank run beside each other,
// each the longer for it; the simulator's communicators run one after the other. Gives each
// collective the time from the end of the one that ended before it.
void serialize_collectives(std::vector<analysis::Timeline>& timelines);

}  // namespace shardlens::sim
