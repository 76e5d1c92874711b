#include "gui/model/details/missing_data.h"

#include <algorithm>

#include <QObject>

#include "gui/model/memory/measured_memory.h"
#include "gui/model/run/exposed_list.h"
#include "gui/model/run/run_notes.h"

namespace shardlens::gui {

QString why_nothing_exposed(const RunData& run, const RankData& rank) {
  if (!rank.timeline.collectives.empty()) {
    return exposed_within(rank, rank.timeline.span).empty()
               ? QObject::tr("No communication is exposed: all of it overlapped with compute.")
               : QObject::tr(
                     "No communication is exposed in what is chosen. Other steps have some: choose "
                     "all steps, and click into the timeline to leave the dragged range.");
  }
  if (rank.trace.metadata.world_size == 1) {
    return QObject::tr(
        "The run has one rank, which communicates with no other. What if shows its plan on more.");
  }
  return run.event_count == 0
             ? QObject::tr("The trace has no events.")
             : QObject::tr(
                   "The trace has no collectives. Record a run of two or more ranks; on GPUs "
                   "torch.profiler records NCCL's kernels with ProfilerActivity.CUDA.");
}

QString why_no_order(const RankData& rank) {
  if (rank.orders.empty()) {
    return QObject::tr(
        "The trace has no steps, so there is no order to compare. torch.profiler records them if "
        "its step() is called after each training step.");
  }
  return rank.timeline.collectives.empty()
             ? QObject::tr("The step has no collectives, so there is no order to compare.")
             : QObject::tr(
                   "The trace does not contain what the schedule issued: torch.profiler does not "
                   "record it. A capture has it (File › Capture on this machine), and a run that "
                   "is recorded with shardlens.record.");
}

QString why_one_rank(const RunData& run) {
  const trace::Metadata& about = run.ranks.front()->trace.metadata;
  return about.world_size == 1 ? QObject::tr("The run has no other ranks.")
         : about.simulated()   ? QObject::tr("The other ranks of a simulated plan do the same.")
         : about.backend == "emulated"
             ? QObject::tr("The other ranks of the emulated world were not run.")
             : QObject::tr(
                   "Open the folder that has the traces of all ranks to see which one was late.");
}

QString why_no_memory(const RunData& run) {
  const bool measured = measured_peak(run) || std::ranges::any_of(run.ranks, [](const auto& rank) {
                          return !rank->figures.memory.empty();
                        });
  return measured || is_simulated(run)
             ? QString()
             : QObject::tr(
                   "No memory was measured: torch.profiler records it with profile_memory=True, "
                   "and a capture on a GPU has the peak of each step in metrics.jsonl.");
}

QString why_no_units(const RankData& rank) {
  const bool any =
      std::ranges::any_of(rank.figures.units, [](const auto& unit) { return unit.is_unit; });
  return any || rank.trace.events.empty()
             ? QString()
             : QObject::tr(
                   "Nothing in the trace belongs to a unit: it has no ranges of FSDP or DDP. They "
                   "are recorded if the model is wrapped by fully_shard or "
                   "DistributedDataParallel, and with ProfilerActivity.CPU.");
}

QString why_no_launch() {
  return QObject::tr("not in the trace: torch.profiler records it with ProfilerActivity.CPU");
}

}  // namespace shardlens::gui
