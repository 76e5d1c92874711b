#include "gui/model/what_if/plan_space.h"

#include <algorithm>
#include <map>

#include <QObject>

#include "sim/search/precision.h"

namespace shardlens::gui {
namespace {

QString yes_or_no(bool value) {
  return value ? QObject::tr("yes") : QObject::tr("no");
}

double number_of(bool value) {
  return value ? 1 : 0;
}

std::vector<SpaceKnob> all_knobs() {
  using C = sim::Candidate;
  return {
      {QObject::tr("Mesh"), QObject::tr("The sizes of the mesh's axes"),
       [](const C& c, int64_t ranks) {
         return QString::fromStdString(sim::name_of(sim::mesh_of(c, ranks)));
       },
       [](const C& c) {
         return static_cast<double>(((c.tensor * 1024 + c.context) * 1024 + c.expert) * 65'536 +
                                    c.shard);
       }},
      {QObject::tr("Blocks a unit"), QObject::tr("Blocks of the model in each unit"),
       [](const C& c, int64_t /*ranks*/) {
         return c.blocks_per_unit == 0 ? QObject::tr("all") : QString::number(c.blocks_per_unit);
       },
       [](const C& c) {
         return c.blocks_per_unit == 0 ? 1e9 : static_cast<double>(c.blocks_per_unit);
       }},
      {QObject::tr("After forward"), QObject::tr("Whether parameters are resharded after forward"),
       [](const C& c, int64_t /*ranks*/) {
         return c.reshard ? QObject::tr("resharded") : QObject::tr("kept");
       },
       [](const C& c) { return number_of(!c.reshard); }},
      {QObject::tr("Prefetch, backward"), QObject::tr("Whether backward gathers a unit ahead"),
       [](const C& c, int64_t /*ranks*/) { return yes_or_no(c.backward_prefetch); },
       [](const C& c) { return number_of(c.backward_prefetch); }},
      {QObject::tr("Prefetch, forward"), QObject::tr("Units that forward gathers ahead"),
       [](const C& c, int64_t /*ranks*/) { return QString::number(c.forward_prefetch); },
       [](const C& c) { return static_cast<double>(c.forward_prefetch); }},
      {QObject::tr("Checkpoints"), QObject::tr("Whether every block is checkpointed"),
       [](const C& c, int64_t /*ranks*/) {
         return c.checkpoint ? QObject::tr("every block") : QObject::tr("none");
       },
       [](const C& c) { return number_of(c.checkpoint); }},
      {QObject::tr("Microbatches"), QObject::tr("Microbatches and the samples in each of them"),
       [](const C& c, int64_t /*ranks*/) {
         return QStringLiteral("%1 × %2").arg(c.accumulate).arg(c.batch);
       },
       [](const C& c) { return static_cast<double>(c.batch); }},
      {QObject::tr("Precision"), QObject::tr("Of parameters and communication"),
       [](const C& c, int64_t /*ranks*/) {
         return c.precision ? QString::fromStdString(std::string(sim::name_of(*c.precision)))
                            : QObject::tr("the plan's");
       },
       nullptr},
      {QObject::tr("CPU offload"), QObject::tr("Whether parameters and optimizer are on the host"),
       [](const C& c, int64_t /*ranks*/) { return yes_or_no(c.cpu_offload); },
       [](const C& c) { return number_of(c.cpu_offload); }}};
}

}  // namespace

PlanState PlanSpace::state_of(size_t point, const plan::ModuleTree& tree) const {
  const sim::Candidate& candidate = points.at(point).candidate;
  PlanState out = base;
  out.plan = sim::plan_of(candidate, base.plan, tree, base.world_size);
  out.step.batch = candidate.batch;
  out.step.accumulate = candidate.accumulate;
  return out;
}

QString PlanSpace::title_of(size_t point) const {
  return QString::fromStdString(sim::name_of(points.at(point).candidate, base.world_size));
}

const std::vector<SpaceKnob>& space_knobs() {
  static const std::vector<SpaceKnob> kKnobs = all_knobs();
  return kKnobs;
}

std::vector<QString> values_of(const SpaceKnob& knob, const PlanSpace& space) {
  std::map<std::pair<double, QString>, bool> found;
  for (const SpacePoint& point : space.points) {
    found[{knob.key ? knob.key(point.candidate) : 0,
           knob.value(point.candidate, space.base.world_size)}] = true;
  }
  std::vector<QString> out;
  for (const auto& [value, is_there] : found) {
    if (std::ranges::find(out, value.second) == out.end()) {
      out.push_back(value.second);
    }
  }
  return out;
}

std::vector<size_t> differing_knobs(const PlanSpace& space, const std::vector<size_t>& points) {
  std::vector<size_t> out;
  const size_t count = points.empty() ? space.points.size() : points.size();
  const auto candidate = [&](size_t i) -> const sim::Candidate& {
    return space.points[points.empty() ? i : points[i]].candidate;
  };
  for (size_t k = 0; k < space_knobs().size(); ++k) {
    const SpaceKnob& knob = space_knobs()[k];
    for (size_t i = 1; i < count; ++i) {
      if (knob.value(candidate(i), space.base.world_size) !=
          knob.value(candidate(0), space.base.world_size)) {
        out.push_back(k);
        break;
      }
    }
  }
  return out;
}

}  // namespace shardlens::gui
