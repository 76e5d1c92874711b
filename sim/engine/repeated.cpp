#include "sim/engine/repeated.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/schedule/planned/microbatches.h"

namespace shardlens::sim {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::PlannedItem;
using schedule::PlannedStep;

const Action* action_of(const PlannedStep& step, size_t item) {
  const PlannedItem& each = step.order[item];
  return each.kind == PlannedItem::Kind::kAction ? &step.actions[each.index].action : nullptr;
}

// By item: where in its microbatch the event that it waits for was recorded; kEarlier: before its
// microbatch, or never.
constexpr uint32_t kEarlier = 0xffffffffU;
std::vector<uint32_t> recordings(const PlannedStep& step,
                                 const std::vector<size_t>& begins,
                                 size_t end) {
  std::vector<uint32_t> out(end, kEarlier);
  std::vector<size_t> last;  // by event: item after its last recording, 0: none
  size_t next = 0, begin = 0;
  for (size_t i = 0; i < end; ++i) {
    if (next < begins.size() && begins[next] == i) {
      begin = begins[next++];
    }
    const Action* action = action_of(step, i);
    if (action == nullptr || action->event == schedule::kNoEvent) {
      continue;
    }
    last.resize(std::max<size_t>(last.size(), size_t{action->event} + 1), 0);
    if (action->op == Op::kRecord) {
      last[action->event] = i + 1;
    } else if (last[action->event] > begin) {
      out[i] = static_cast<uint32_t>(last[action->event] - begin);
    }
  }
  return out;
}

bool same_work(const PlannedStep& step, size_t a, size_t b) {
  const Action *one = action_of(step, a), *other = action_of(step, b);
  return schedule::same_item(step, a, b) && (one == nullptr || one->group == other->group);
}

// Whether a simulation does the same in each microbatch as in the second one.
bool all_repeat(const PlannedStep& step, const std::vector<size_t>& begins, size_t length) {
  const std::vector<uint32_t> recorded = recordings(step, begins, begins.back() + length);
  for (size_t k = 2; k < begins.size(); ++k) {
    if (k + 1 < begins.size() && begins[k + 1] - begins[k] != length) {
      return false;
    }
    for (size_t i = 0; i < length; ++i) {
      const size_t item = begins[k] + i, second = begins[1] + i;
      if (!same_work(step, item, second) || recorded[item] != recorded[second]) {
        return false;
      }
    }
  }
  return true;
}

// Whether no unit stores its first gradient in [begin, end): later ones are added to it, which
// takes another time.
bool adds_gradients(const PlannedStep& step, size_t begin, size_t end) {
  std::vector<bool> stored(step.unit_names.size(), false);
  for (size_t i = 0; i < end; ++i) {
    const Action* action = action_of(step, i);
    if (action != nullptr && (action->op == Op::kStoreGrad || action->op == Op::kToHost)) {
      if (i >= begin && !stored[action->unit]) {
        return false;
      }
      stored[action->unit] = true;
    }
  }
  return true;
}

}  // namespace

std::optional<RepeatedMicrobatches> repeated_microbatches(const PlannedStep& step) {
  const std::vector<size_t> begins = schedule::microbatches(step);
  const bool known = step.tail > 0;
  if (begins.size() < (known ? 2 : 3) || !step.buckets.empty()) {
    return std::nullopt;
  }
  const size_t length = (known ? step.tail - begins.back() : begins[2] - begins[1]);
  const size_t end = begins[1] + length, tail = begins.back() + length;
  if (tail > step.order.size()) {
    return std::nullopt;
  }
  if (!known && !all_repeat(step, begins, length)) {
    return std::nullopt;
  }
  for (size_t i = tail; i < step.order.size(); ++i) {
    const Action* action = action_of(step, i);
    if (action != nullptr && action->op != Op::kRecord) {
      return std::nullopt;
    }
  }
  if (!adds_gradients(step, begins[1], end)) {
    return std::nullopt;
  }
  return RepeatedMicrobatches{begins[1], end, tail, static_cast<int64_t>(begins.size()) - 2};
}

}  // namespace shardlens::sim
