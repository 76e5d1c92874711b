#pragma once

#include <string>
#include <vector>

#include <QString>

#include "gui/model/what_if/edit_history.h"

namespace shardlens::gui {

// A change of the mesh of a session's plan.
struct MeshEdit {
  QString label;  // in the menu of its axis: "4", "split: shard 2 and tensor 4"
  QString title;  // as an edit: "Mesh: shard 2, tensor 4"
  PlanState next;
  bool holds = false;     // it is what the plan has now
  bool is_degree = true;  // another size of the axis; false: a part of it becomes another axis's
};

// The sizes of one axis of plan::mesh_axes(), then its splits and merges with others.
[[nodiscard]] std::vector<MeshEdit> mesh_edits(const PlanSession& session, const std::string& axis);
// The size of the axis in the session's plan.
[[nodiscard]] int64_t degree_of(const PlanSession& session, const std::string& axis);

}  // namespace shardlens::gui
