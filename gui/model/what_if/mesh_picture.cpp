#include "gui/model/what_if/mesh_picture.h"

#include <algorithm>
#include <utility>

#include <QObject>
#include <QStringList>

#include "core/base/error.h"
#include "core/plan/ownership.h"
#include "core/plan/rank_bytes.h"
#include "gui/model/base/in_window.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/base/words.h"
#include "gui/model/run/run_notes.h"

namespace shardlens::gui {
namespace {

std::shared_ptr<const plan::ResolvedPlan> resolved(const PlanSession& session) {
  const PlanSubject& subject = session.subject();
  const sim::ScenarioModel& model =
      subject.of_run != nullptr ? *subject.of_run : *subject.of_config;
  return std::make_shared<const plan::ResolvedPlan>(
      model.resolve(session.state().plan, session.state().world_size));
}

std::vector<MeshPicture::Axis> axes_of(const plan::ResolvedPlan& plan) {
  std::vector<MeshPicture::Axis> out;
  for (const mesh::Mesh* mesh : {&plan.mesh, &plan.expert_mesh}) {
    for (const mesh::Axis& axis : mesh->axes()) {
      const bool known = std::ranges::any_of(
          out, [&axis](const MeshPicture::Axis& each) { return each.group.name == axis.name; });
      if (axis.size > 1 && !known) {
        out.push_back({mesh->group(axis.name), mesh == &plan.expert_mesh});
      }
    }
  }
  return out;
}

void take_run(const SelectionContext& selection, bool as_it_ran, MeshPicture& out) {
  const RunPointer& run = selection.run();
  for (size_t i = 0; run != nullptr && i < run->ranks.size(); ++i) {
    const auto rank = static_cast<size_t>(run->ranks[i]->figures.rank);
    if (rank < out.ranks.size()) {
      out.ranks[rank].in_run = i;
      if (as_it_ran) {
        out.ranks[rank].waited = run->ranks[i]->live.within(selection.windowOf(i)).exposed_comm;
      }
    }
  }
}

void take_version(const PlanSession& session, MeshPicture& out) {
  const PlanVersion* now = session.current();
  if (now == nullptr || !now->error.isEmpty()) {
    return;
  }
  out.title = QStringLiteral("v%1").arg(now - session.versions().data());
  out.peak = now->prediction.memory.at_peak;
  out.available = now->prediction.available;
  for (MeshPicture::Rank& rank : out.ranks) {
    if (!out.measured && !rank.waited && now->hasStep()) {
      rank.waited = now->prediction.figures.exposed_comm;
    }
  }
}

void take_machine(const QString& machine, MeshPicture& out) {
  try {
    out.spec = spec_of(machine);
  } catch (const Error&) {
    out.spec.reset();  // the version's error names what is wrong with the file
  }
  out.gpus = out.spec ? std::min(out.spec->gpus, std::ssize(out.ranks)) : std::ssize(out.ranks);
}

}  // namespace

std::array<Bytes, sim::kMemoryCategoryCount> MeshPicture::held(size_t rank) const {
  std::array<Bytes, sim::kMemoryCategoryCount> out{};
  if (peak) {
    out = *peak;
  }
  out[static_cast<size_t>(sim::MemoryCategory::kParameters)] = ranks[rank].parameters;
  return out;
}

QString MeshPicture::place(size_t rank) const {
  QStringList out;
  for (const Axis& axis : axes) {
    out.append(QStringLiteral("%1 %2")
                   .arg(words(axis.group.name))
                   .arg(axis.group.position(static_cast<int64_t>(rank))));
  }
  return out.join(QStringLiteral(", "));
}

QString MeshPicture::text(size_t rank) const {
  QStringList out{
      nodes() > 1
          ? QObject::tr("Rank %1, on node %2").arg(rank).arg(static_cast<int64_t>(rank) / gpus)
          : QObject::tr("Rank %1").arg(rank)};
  for (const Axis& axis : axes) {
    const std::vector<int64_t> members = axis.group.members(static_cast<int64_t>(rank));
    constexpr size_t kListed = 8;
    QStringList names;
    for (size_t i = 0; i < std::min(kListed, members.size()); ++i) {
      names.append(QString::number(members[i]));
    }
    out.append(QObject::tr("%1 %2 of %3: ranks %4%5")
                   .arg(words(axis.group.name))
                   .arg(axis.group.position(static_cast<int64_t>(rank)))
                   .arg(axis.group.size)
                   .arg(names.join(QStringLiteral(", ")),
                        members.size() > kListed ? QStringLiteral(", …") : QString()));
  }
  const auto bytes = held(rank);
  for (int category = 0; category < sim::kMemoryCategoryCount; ++category) {
    if (bytes[static_cast<size_t>(category)] > 0) {
      out.append(
          QStringLiteral("%1 %2").arg(words(name_of(static_cast<sim::MemoryCategory>(category))),
                                      bytesText(bytes[static_cast<size_t>(category)])));
    }
  }
  if (ranks[rank].waited) {
    out.append((measured ? QObject::tr("waited %1, measured") : QObject::tr("waits %1, simulated"))
                   .arg(durationText(*ranks[rank].waited)));
  }
  return out.join(u'\n');
}

RankBoxes boxes_by_rank(const plan::ResolvedPlan& plan, const std::string& parameter) {
  RankBoxes out(static_cast<size_t>(plan.world_size));
  const std::vector<plan::ParameterPlace> places = plan::parameter_places(plan);
  const auto place = std::ranges::find_if(places, [&](const plan::ParameterPlace& each) {
    return plan.tree.parameters[each.parameter].fqn == parameter;
  });
  if (place == places.end()) {
    return out;
  }
  const std::vector<int64_t>& shape = plan.tree.parameters[place->parameter].shape;
  const auto part = [&shape](const Box& box, size_t dim) {
    const auto of = static_cast<double>(dim < shape.size() ? shape[dim] : 1);
    return dim < shape.size() ? std::pair(static_cast<double>(box.offset[dim]) / of,
                                          static_cast<double>(box.shape[dim]) / of)
                              : std::pair(0.0, 1.0);
  };
  const bool vector = shape.size() < 2;
  for (const plan::HeldPart& held : plan::Ownership(plan).parts(*place)) {
    for (const Box& box : held.boxes) {
      const auto [x, width] = part(box, vector ? 0 : 1);
      const auto [y, height] = vector ? std::pair(0.0, 1.0) : part(box, 0);
      for (int64_t i = 0; i < held.ranks.size(); ++i) {
        out[static_cast<size_t>(held.ranks.at(i))].emplace_back(x, y, width, height);
      }
    }
  }
  return out;
}

MeshPicture mesh_picture(const SelectionContext& selection, const PlanSession& session) {
  MeshPicture out;
  const RunPointer& run = selection.run();
  try {
    out.plan = session.isOpen() ? resolved(session) : plan_of(run);
  } catch (const Error& error) {
    out.why = in_window(QString::fromStdString(error.what()));
    return out;
  }
  if (out.plan == nullptr) {
    out.why =
        session.why().isEmpty() ? QObject::tr("No plan is known yet.") : in_window(session.why());
    return out;
  }
  out.axes = axes_of(*out.plan);
  out.ranks.resize(static_cast<size_t>(out.plan->world_size));
  const std::vector<Bytes> bytes = plan::bytes_by_rank(*out.plan);
  for (size_t rank = 0; rank < out.ranks.size(); ++rank) {
    out.ranks[rank].parameters = bytes[rank % bytes.size()];
  }
  const bool as_it_ran =
      !session.isOpen() || (session.recorded() != nullptr && !session.versions().empty() &&
                            session.versions().front().state == session.state());
  out.measured = as_it_ran && run != nullptr && !is_simulated(*run);
  take_run(selection, as_it_ran, out);
  if (session.isOpen()) {
    take_version(session, out);
    take_machine(session.state().machine, out);
  } else {
    out.gpus = std::ssize(out.ranks);
  }
  return out;
}

}  // namespace shardlens::gui
