#include "sim/engine/alike.h"

namespace shardlens::sim {
namespace {

using schedule::Op;
using schedule::PlannedItem;
using schedule::PlannedStep;

bool waits(const PlannedStep& step, const PlannedItem& item) {
  if (item.kind != PlannedItem::Kind::kAction) {
    return false;
  }
  const Op op = step.actions[item.index].action.op;
  return op == Op::kStreamWait || op == Op::kHostWait;
}

bool records(const PlannedStep& step, const PlannedItem& item) {
  return item.kind == PlannedItem::Kind::kAction &&
         step.actions[item.index].action.op == Op::kRecord;
}

bool same(const PlannedStep& step, const PlannedItem& a, const PlannedItem& b) {
  if (a.kind != b.kind) {
    return false;
  }
  switch (a.kind) {
    case PlannedItem::Kind::kOperator:
      return a.index == b.index;
    case PlannedItem::Kind::kHook:
      return step.hooks[a.index].hook == step.hooks[b.index].hook &&
             step.hooks[a.index].unit == step.hooks[b.index].unit;
    case PlannedItem::Kind::kAction: {
      const schedule::Action &x = step.actions[a.index].action, &y = step.actions[b.index].action;
      return x.op == y.op && x.unit == y.unit && x.stream == y.stream;
    }
  }
  return false;
}

// Whether the device did the item only when the host came to it.
bool bound(const PlannedStep& step, const PlannedItem& item, const ItemTimes& times) {
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

std::vector<size_t> microbatches(const PlannedStep& step) {
  std::vector<size_t> begins;
  for (size_t i = 0; i < step.order.size(); ++i) {
    if (step.order[i].kind == PlannedItem::Kind::kHook &&
        step.hooks[step.order[i].index].hook == Hook::kRootPreForward) {
      begins.push_back(i);
    }
  }
  return begins;
}

std::optional<Nanoseconds> period_of(const PlannedStep& step, std::span<const ItemTimes> items) {
  const std::vector<size_t> begins = microbatches(step);
  if (begins.size() != kPlannedMicrobatches || items.size() != step.order.size()) {
    return std::nullopt;
  }
  const size_t length = begins[2] - begins[1];
  if (begins[3] - begins[2] != length) {
    return std::nullopt;
  }
  std::optional<Shift> shift;
  // Items of one microbatch against those of the one before.
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
    if (!same(step, step.order[i], step.order[i - length]) || !later(i, i - length)) {
      return std::nullopt;
    }
  }
  bool forward = true;
  for (size_t i = begins[3]; i < step.order.size() && forward; ++i) {
    forward = i - length < begins[3] && same(step, step.order[i], step.order[i - length]);
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
