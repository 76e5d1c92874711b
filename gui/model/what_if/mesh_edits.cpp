#include "gui/model/what_if/mesh_edits.h"

#include <utility>

#include <QObject>
#include <QStringList>

#include "core/edits/mesh_values.h"
#include "core/mesh/mesh.h"
#include "gui/model/base/words.h"

namespace shardlens::gui {
namespace {

MeshEdit edit_to(const PlanSession& session, QString label, const plan::MeshSizes& mesh) {
  MeshEdit out;
  out.label = std::move(label);
  out.next = session.state();
  out.next.plan.mesh = mesh;
  const plan::MeshSizes settled = plan::settled_mesh(mesh, out.next.world_size);
  out.holds = settled == plan::settled_mesh(session.state().plan.mesh, session.state().world_size);
  QStringList sizes;
  for (const std::string& axis : plan::mesh_axes()) {
    if (const int64_t size = plan::size_of_axis(settled, axis).value_or(1); size > 1) {
      sizes.append(QStringLiteral("%1 %2").arg(words(axis)).arg(size));
    }
  }
  out.title =
      QObject::tr("Mesh: %1")
          .arg(sizes.isEmpty() ? QObject::tr("one rank") : sizes.join(QStringLiteral(", ")));
  return out;
}

int64_t smallest_factor(int64_t of) {
  for (int64_t factor = 2; factor * factor <= of; ++factor) {
    if (of % factor == 0) {
      return factor;
    }
  }
  return of;
}

}  // namespace

int64_t degree_of(const PlanSession& session, const std::string& axis) {
  const PlanState& state = session.state();
  return plan::size_of_axis(plan::settled_mesh(state.plan.mesh, state.world_size), axis)
      .value_or(1);
}

std::vector<MeshEdit> mesh_edits(const PlanSession& session, const std::string& axis) {
  const PlanState& state = session.state();
  const plan::MeshSizes& mesh = state.plan.mesh;
  std::vector<MeshEdit> out;
  const int64_t now = degree_of(session, axis);
  for (int64_t degree = 1; degree <= state.world_size; ++degree) {
    if (state.world_size % degree == 0) {
      // The size that the axis has changes no other axis.
      out.push_back(
          edit_to(session, QString::number(degree),
                  degree == now ? mesh : plan::with_degree(mesh, axis, degree, state.world_size)));
    }
  }
  if (now == 1 || axis == mesh::kExpert) {
    return out;
  }
  for (const std::string& other : plan::mesh_axes()) {
    if (other == axis || other == mesh::kExpert) {
      continue;
    }
    const int64_t factor = smallest_factor(now), size = degree_of(session, other);
    if (factor < now) {
      out.push_back(edit_to(session,
                            QObject::tr("split: %1 %2, %3 %4")
                                .arg(words(axis))
                                .arg(now / factor)
                                .arg(words(other))
                                .arg(size * factor),
                            plan::with_moved(mesh, axis, other, factor, state.world_size)));
      out.back().is_degree = false;
    }
    out.push_back(edit_to(session, QObject::tr("merge: %1 %2").arg(words(other)).arg(size * now),
                          plan::with_moved(mesh, axis, other, now, state.world_size)));
    out.back().is_degree = false;
  }
  return out;
}

}  // namespace shardlens::gui
