#include "sim/scenario/predicted_communication.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/error.h"
#include "core/schedule/collective_of.h"
#include "sim/engine/message.h"

namespace shardlens::sim {
namespace {

using analysis::Collective;
using schedule::PlannedItem;

// What Partition needs of a simulated rank. A collective's group is its `listed_group`.
analysis::Timeline timeline_of(const PricedStep& step, const SimulatedStep& simulated) {
  const SimulatedRank& rank = shown_rank(simulated);
  const auto shown = static_cast<size_t>(&rank - simulated.ranks.data());
  const plan::Workload& workload =
      step.of_ranks == nullptr ? *step.workload : step.of_ranks->at(shown).workload;
  const schedule::PlannedStep& planned = *step.planned;
  SHARDLENS_CHECK(rank.items.size() == planned.order.size(),
                  "the step was simulated without times");
  analysis::Timeline out;
  analysis::UnionBuilder compute, communication;
  const auto add = [](analysis::UnionBuilder& to, const Span& span) {
    if (span.end >= 0) {
      to.add({span.start, span.end});
    }
  };
  for (size_t i = 0; i < planned.order.size(); ++i) {
    const PlannedItem& item = planned.order[i];
    const ItemTimes& times = rank.items[i];
    if (item.kind == PlannedItem::Kind::kOperator) {
      add(compute, times.stream);
    }
    if (item.kind == PlannedItem::Kind::kCommunication && times.stream.end >= 0) {
      const plan::Communication& each = workload.communications[item.index];
      add(communication, times.stream);
      Collective& c = out.collectives.emplace_back();
      c.kind = each.kind;
      c.purpose = each.purpose;
      c.when = {times.stream.start, times.stream.end};
      c.bytes = each.bytes;
      c.listed_group = each.group;
    }
    if (item.kind != PlannedItem::Kind::kAction) {
      continue;
    }
    const schedule::Action& action = planned.actions[item.index].action;
    if (action.unit != kNoUnit && action.unit >= step.plan->units.size()) {
      add(compute, times.copy);  // the Reducer's copies are ordinary operators
    }
    if (action.op == schedule::Op::kStep) {
      add(compute, times.stream);
    }
    const auto kind = schedule::collective_of(action.op);
    if (!kind || times.stream.end < 0) {
      continue;
    }
    add(communication, times.stream);
    Collective& c = out.collectives.emplace_back();
    c.kind = kind;
    c.purpose = sharding_purpose(kind);
    c.when = {times.stream.start, times.stream.end};
    c.bytes = message_of(*step.plan, planned, action).larger();
    c.listed_group = action.group;
  }
  out.compute = compute.take();
  out.communication = communication.take();
  std::ranges::stable_sort(out.collectives, {}, [](const Collective& c) { return c.when.start; });
  return out;
}

}  // namespace

std::vector<analysis::CommunicationFigures> predicted_communication(const PricedStep& step,
                                                                    const SimulatedStep& simulated,
                                                                    const Target& target) {
  const analysis::Timeline timeline = timeline_of(step, simulated);
  analysis::WindowGroups groups;
  for (const mesh::Group& each : step.plan->groups) {
    groups.groups.push_back({each.name, "", each.size});
  }
  for (const Collective& c : timeline.collectives) {
    groups.of.push_back(c.listed_group);
  }
  const analysis::IntervalSet all{{0, std::numeric_limits<Nanoseconds>::max()}};
  std::vector<analysis::CommunicationFigures> out =
      analysis::communication_figures(groups, timeline, analysis::Partition(timeline), all);
  const Nanoseconds norm = norm_communication(*step.plan, target);
  for (const auto& [purpose, time] : {std::pair{Purpose::kNorm, norm},
                                      std::pair{Purpose::kOther, target.outside_communication}}) {
    if (time > 0) {  // while the host waits for it
      analysis::CommunicationFigures& made = out.emplace_back();
      made.purpose = purpose;
      made.busy = made.exposed = time;
    }
  }
  return out;
}

}  // namespace shardlens::sim
