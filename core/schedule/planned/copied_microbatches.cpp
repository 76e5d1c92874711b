#include "core/schedule/planned/copied_microbatches.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace shardlens::schedule {
namespace {

void append(const PlannedStep& from,
            const PlannedPlace& begin,
            const PlannedPlace& end,
            PlannedStep& out) {
  const auto later_hooks = static_cast<uint32_t>(out.hooks.size() - begin.hooks);
  const auto later_actions = static_cast<uint32_t>(out.actions.size() - begin.actions);
  const auto at = [](const auto& list, size_t index) {
    return list.begin() + static_cast<std::ptrdiff_t>(index);
  };
  out.hooks.insert(out.hooks.end(), at(from.hooks, begin.hooks), at(from.hooks, end.hooks));
  const size_t first = out.actions.size();
  out.actions.insert(out.actions.end(), at(from.actions, begin.actions),
                     at(from.actions, end.actions));
  for (size_t i = first; i < out.actions.size(); ++i) {
    out.actions[i].seq = static_cast<uint32_t>(i + 1);
  }
  for (size_t i = begin.items; i < end.items; ++i) {
    PlannedItem& item = out.order.emplace_back(from.order[i]);
    item.index += item.kind == PlannedItem::Kind::kHook     ? later_hooks
                  : item.kind == PlannedItem::Kind::kAction ? later_actions
                                                            : 0;
  }
}

}  // namespace

PlannedStep with_microbatches(const TwoMicrobatches& two, int microbatches, PlannedStep storage) {
  PlannedStep out = std::move(storage);
  const PlannedStep& from = two.step;
  out.hooks.clear();
  out.actions.clear();
  out.order.clear();
  out.unit_names = from.unit_names;
  out.buckets = from.buckets;
  const auto more = static_cast<size_t>(microbatches - 1);
  out.hooks.reserve(from.hooks.size() + more * (two.tail.hooks - two.second.hooks));
  out.actions.reserve(from.actions.size() + more * (two.tail.actions - two.second.actions));
  out.order.reserve(from.order.size() + more * (two.tail.items - two.second.items));
  append(from, {}, two.second, out);
  for (int copy = 1; copy < microbatches; ++copy) {
    append(from, two.second, two.tail, out);
  }
  out.tail = microbatches > 1 ? out.order.size() : 0;
  append(from, two.tail, {from.hooks.size(), from.actions.size(), from.order.size()}, out);
  return out;
}

}  // namespace shardlens::schedule
