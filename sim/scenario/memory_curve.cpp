#include "sim/scenario/memory_curve.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "core/schedule/action.h"
#include "core/schedule/planned/planned.h"

namespace shardlens::sim {
namespace {

std::string of_unit(const std::vector<std::string>& names, UnitId unit) {
  return unit >= names.size()  ? ""
         : names[unit].empty() ? " of the root"
                               : fmt::format(" of {}", names[unit]);
}

std::string_view name_of(plan::Phase phase) {
  constexpr std::string_view kNames[] = {"forward", "loss", "backward", "optimizer", "recompute"};
  return kNames[static_cast<size_t>(phase)];
}

std::string words_of(const Prediction& prediction, uint32_t position) {
  const schedule::PlannedStep& step = *prediction.priced.planned;
  const schedule::PlannedItem& item = step.order[position];
  switch (item.kind) {
    case schedule::PlannedItem::Kind::kOperator: {
      const plan::Operator& op = prediction.priced.workload->operators[item.index];
      return fmt::format("{}{}, {}", op.name, of_unit(step.unit_names, op.unit), name_of(op.phase));
    }
    case schedule::PlannedItem::Kind::kAction: {
      const schedule::Action& action = step.actions[item.index].action;
      return fmt::format("{}{}", name_of(action.op), of_unit(step.unit_names, action.unit));
    }
    case schedule::PlannedItem::Kind::kCommunication: {
      const plan::Communication& each = prediction.priced.workload->communications[item.index];
      return fmt::format("{}{}, {}", name_of(each.kind), of_unit(step.unit_names, each.unit),
                         name_of(each.phase));
    }
    case schedule::PlannedItem::Kind::kHook:
    case schedule::PlannedItem::Kind::kWait:
      break;
  }
  return "the step's begin";
}

// An operator or communication.
bool is_work(const Prediction& prediction, uint32_t position) {
  using Kind = schedule::PlannedItem::Kind;
  const Kind kind = prediction.priced.planned->order[position].kind;
  return kind == Kind::kOperator || kind == Kind::kCommunication;
}

}  // namespace

const MemoryCurve::Point& MemoryCurve::at(Nanoseconds time) const {
  const auto after = std::upper_bound(points.begin(), points.end(), time,
                                      [](Nanoseconds t, const Point& p) { return t < p.time; });
  return after == points.begin() ? points.front() : *std::prev(after);
}

std::vector<Bytes> MemoryCurve::held_at(const Point& point) const {
  std::vector<Bytes> out(holders.size());
  for (size_t i = 0; i < point.changes; ++i) {
    out[changes[i].holder] += changes[i].bytes;
  }
  return out;
}

std::optional<std::string> MemoryCurve::unit_of(const MemoryHolder& holder) const {
  return holder.unit < units.size() ? std::optional(units[holder.unit]) : std::nullopt;
}

MemoryCurve memory_curve(const Prediction& prediction) {
  MemoryCurve out;
  out.end = prediction.step.duration;
  out.changes = prediction.memory.changes;
  out.holders = prediction.memory.holders;
  out.units = prediction.priced.planned->unit_names;
  const std::vector<ItemTimes>& items = prediction.step.ranks.front().items;
  Nanoseconds time = 0, ended = 0;  // `ended`: of the operators before the moment's item
  uint32_t peak_at = 0, next = 0;
  for (const MemoryMoment& moment : prediction.memory.history) {
    for (; next < moment.item; ++next) {
      if (is_work(prediction, next)) {
        ended = std::max(ended, items[next].stream.end);
      }
    }
    const ItemTimes& item = items[moment.item];
    const bool runs = is_work(prediction, moment.item) && item.stream.start >= 0;
    time = std::max({time, item.host.start, runs ? item.stream.start : ended});
    out.points.push_back({time, moment.bytes, moment.changes});
    if (out.points.back().sum() > out.points[out.peak].sum()) {
      out.peak = out.points.size() - 1;
      peak_at = moment.item;
    }
  }
  if (!out.points.empty()) {
    out.at_peak = words_of(prediction, peak_at);
  }
  return out;
}

}  // namespace shardlens::sim
