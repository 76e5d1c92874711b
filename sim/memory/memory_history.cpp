#include <cstdint>
#include <vector>

#include "sim/memory/memory_replay.h"

namespace shardlens::sim {

void MemoryReplay::note_history(uint32_t item, uint32_t op) {
  if (highest_ > allocator_.allocated()) {
    history_.push_back({item, op, highest_by_category_});
  }
  if (history_.empty() || history_.back().bytes != by_category_) {
    history_.push_back({item, op, by_category_});
  }
  highest_ = allocator_.allocated();
  highest_by_category_ = by_category_;
}

std::vector<MemoryMoment> MemoryReplay::history(const schedule::PlannedStep& step) const {
  const std::vector<uint32_t> positions = outline_positions(step);
  std::vector<uint32_t> operators;  // positions of the outline's operators, which are all
  using Kind = schedule::PlannedItem::Kind;
  for (uint32_t at = 0; at < step.order.size(); ++at) {
    if (step.order[at].kind == Kind::kOperator || step.order[at].kind == Kind::kCommunication) {
      operators.push_back(at);
    }
  }
  std::vector<MemoryMoment> out;
  out.reserve(history_.size());
  for (const Noted& each : history_) {
    const uint32_t at = each.op != kNoOperator         ? operators.at(each.op)
                        : each.item < positions.size() ? positions[each.item]
                                                       : 0;
    out.push_back({at, each.bytes});
  }
  return out;
}

}  // namespace shardlens::sim
