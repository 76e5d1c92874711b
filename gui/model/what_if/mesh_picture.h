#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <QRectF>
#include <QString>

#include "core/mesh/mesh.h"
#include "core/plan/resolved_plan.h"
#include "gui/model/run/selection_context.h"
#include "gui/model/what_if/edit_history.h"
#include "sim/hardware/hardware_spec.h"
#include "sim/memory/peak_memory.h"

namespace shardlens::gui {

// The mesh of a plan, ready to be drawn: its ranks, the groups that they form, the memory that each
// holds and how long it waited.
struct MeshPicture {
  struct Axis {
    mesh::Group group;  // along the axis, by its name
    // The axis is one of the experts' mesh, which arranges the same ranks another way.
    bool of_experts = false;
  };
  struct Rank {
    Bytes parameters = 0;               // that it keeps between steps
    std::optional<Nanoseconds> waited;  // communication while nothing computed; nullopt: not known
    std::optional<size_t> in_run;  // position in RunData::ranks; nullopt: the run has no such rank
  };
  QString why;    // why there is nothing to show; "": there is
  QString title;  // "v2", the version of the plan; "": the run's plan, which is not simulated
  std::shared_ptr<const plan::ResolvedPlan> plan;
  std::vector<Axis> axes;  // of more than one rank, outermost first
  std::vector<Rank> ranks;
  bool measured = false;  // Rank::waited was measured in the run; otherwise simulated
  // Of the simulated rank that needs most, at its peak; nullopt: not simulated.
  std::optional<std::array<Bytes, sim::kMemoryCategoryCount>> peak;
  Bytes available = 0;                    // that the allocator can reserve; 0: unknown
  int64_t gpus = 1;                       // of a node
  std::optional<sim::HardwareSpec> spec;  // nullopt: nodes and links are not known

  [[nodiscard]] int64_t nodes() const {
    return (static_cast<int64_t>(ranks.size()) + gpus - 1) / gpus;
  }
  // What the rank holds at the peak by category, with its own parameters; without a peak only
  // these.
  [[nodiscard]] std::array<Bytes, sim::kMemoryCategoryCount> held(size_t rank) const;
  // "shard 2, tensor 0": its positions along the axes; "": a single rank.
  [[nodiscard]] QString place(size_t rank) const;
  // Everything about the rank, a line each.
  [[nodiscard]] QString text(size_t rank) const;
};

// The mesh of the plan in What if; without one, of the open run's plan. The measured times are
// those of the chosen step or range, and are shown as long as the plan is the one that ran.
[[nodiscard]] MeshPicture mesh_picture(const SelectionContext& selection,
                                       const PlanSession& session);

// What each rank stores of a parameter between steps, as parts of it from 0 to 1: across, of its
// second dimension, or of the only one; down, of the first. No boxes: the rank stores nothing, or
// the plan has no such parameter.
using RankBoxes = std::vector<std::vector<QRectF>>;  // by rank
[[nodiscard]] RankBoxes boxes_by_rank(const plan::ResolvedPlan& plan, const std::string& parameter);

}  // namespace shardlens::gui
