#include "sim/engine/alike.h"

#include "core/schedule/planned/microbatches.h"

namespace shardlens::sim {
namespace {

using schedule::Op;
using schedule::PlannedItem;
using schedule::PlannedStep;

bool waits(const PlannedStep& step, const PlannedItem& item) {
  if (item.kind != PlannedItem::Kind::kAction) {
    return item.kind == PlannedItem::Kind::kWait;
  }
  const Op op = step.actions[item.index].action.op;
  return op == Op::kStreamWait || op == Op::kHostWait;
}

bool records(const PlannedStep& step, const PlannedItem& item) {
  return item.kind == PlannedItem::Kind::kAction &&
         step.actions[item.index].action.op == Op::kRecord;
}

// Whether the device had to wait for the host to issue the item.
bool bound(const PlannedStep& step, const PlannedItem& item, const ItemTimes& times) {
  if (times.copy.end >= 0 && times.copy.start <= times.host.end) {
    return true;
  }
  if (times.stream.end < 0) {
    return false;
  }
  const bool instant = waits(step, item) || records(step, item);
  return (instant ? times.stream.end : times.stream.start) <= times.host.end;
}

struct Shift {
  Nanoseconds device = 0, host = 0;
};

}  // namespace

std::optional<Nanoseconds> period_of(const PlannedStep& step, std::span<const ItemTimes> items) {
  const std::vector<size_t> begins = schedule::microbatches(step);
  if (begins.size() != kPlannedMicrobatches || items.size() != step.order.size()) {
    return std::nullopt;
  }
  const size_t length = begins[2] - begins[1];
  if (begins[3] - begins[2] != length) {
    return std::nullopt;
  }
  std::optional<Shift> shift;
  // Whether item `i` has the same shift from its counterpart in the previous microbatch as the
  // items before it.
  const auto later = [&](size_t i, size_t before) {
    const ItemTimes &now = items[i], &then = items[before];
    if ((now.stream.end < 0) != (then.stream.end < 0)) {
      return false;
    }
    if (now.host.start < 0) {
      return then.host.start < 0;  // a hook
    }
    if (now.stream.end < 0) {
      return !shift || now.host.start - then.host.start == shift->host;
    }
    const Nanoseconds device = now.stream.end - then.stream.end;
    const Nanoseconds host = now.host.start - then.host.start;
    shift = shift.value_or(Shift{device, host});
    const bool starts =
        waits(step, step.order[i]) || now.stream.start - then.stream.start == shift->device;
    return device == shift->device && host == shift->host && starts;
  };
  for (size_t i = begins[2]; i < begins[3]; ++i) {
    if (!schedule::same_item(step, i, i - length) || !later(i, i - length)) {
      return std::nullopt;
    }
  }
  bool forward = true;
  for (size_t i = begins[3]; i < step.order.size() && forward; ++i) {
    forward = i - length < begins[3] && schedule::same_item(step, i, i - length);
    if (forward && !later(i, i - length)) {
      return std::nullopt;
    }
  }
  if (!shift || shift->host > shift->device) {
    return std::nullopt;
  }
  for (size_t i = begins[2]; shift->host != shift->device && i < step.order.size(); ++i) {
    if (bound(step, step.order[i], items[i])) {
      return std::nullopt;
    }
  }
  return shift->device;
}

}  // namespace shardlens::sim
