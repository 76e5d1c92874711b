#include "sim/memory/live_memory.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "core/base/collective.h"
#include "sim/memory/memory_outline.h"

namespace shardlens::sim {

using schedule::Stream;

void LiveMemory::begin(Bytes capacity, CachingAllocator::Segments segments, Part part) {
  part_ = part;
  allocator_.reset(capacity, segments);
  holders_.clear();
  by_category_ = {};
  requested_ = 0;
  allocations_ = peak_at_ = 0;
  rising_ = failed_ = stopped_ = false;
  recorded_ = 0;
  highest_ = 0;
  out_ = {};
}

LiveMemory::Block LiveMemory::allocate_block(
    Bytes bytes, Stream stream, MemoryCategory category, UnitId unit, What what, uint32_t op) {
  const auto block = allocator_.allocate(bytes, static_cast<uint32_t>(stream));
  if (!block) {
    failed_ = true;
    return kNone;
  }
  if (*block >= holders_.size()) {
    holders_.resize(allocator_.blocks());
  }
  holders_[*block] = {bytes, unit, op, category, what, true};
  ++allocations_;
  by_category_[static_cast<size_t>(category)] += allocator_.size(*block);
  requested_ += bytes;
  out_.peak_requested = std::max(out_.peak_requested, requested_);
  if (keeps_history_) {
    note_change(holders_[*block], allocator_.size(*block));
    if (allocator_.allocated() > highest_) {
      highest_ = allocator_.allocated();
      highest_by_category_ = by_category_;
      highest_changes_ = static_cast<uint32_t>(changes_.size());
    }
  }
  out_.peak_reserved = std::max(out_.peak_reserved, allocator_.reserved());
  if (allocator_.allocated() > out_.peak_allocated) {
    out_.peak_allocated = allocator_.allocated();
    peak_at_ = allocations_;
    rising_ = true;
  }
  stopped_ = allocations_ == stop_at_;
  return *block;
}

LiveMemory::Block LiveMemory::allocate_in_part(Bytes bytes, Stream stream) {
  if ((stream == Stream::kCompute) != (part_ == Part::kCompute)) {
    return kElsewhere;
  }
  const auto block = allocator_.allocate(bytes, static_cast<uint32_t>(stream));
  if (!block) {
    failed_ = true;
    return kNone;
  }
  Bytes& least = bytes <= CachingAllocator::kSmallSize ? least_small_ : least_large_;
  least = std::min(least, bytes);
  most_ = std::max(most_, allocator_.allocated());
  return *block;
}

void LiveMemory::note_peak() {
  if (std::exchange(rising_, false)) {
    out_.at_peak = by_category_;
  }
}

void LiveMemory::release_block(Block& block, bool later) {
  if (stopped_) {
    return;
  }
  if (block == kElsewhere) {
    block = kNone;
    return;
  }
  if (part_ == Part::kAll) {
    Holder& holder = holders_[block];
    note_peak();
    by_category_[static_cast<size_t>(holder.category)] -= allocator_.size(block);
    requested_ -= holder.requested;
    if (keeps_history_) {
      note_change(holder, -allocator_.size(block));
    }
    holder.alive = false;
  }
  if (later) {
    allocator_.retire(std::exchange(block, kNone), recorded_);
  } else {
    allocator_.free(std::exchange(block, kNone));
  }
}

void LiveMemory::become_gradient(Block block) {
  if (part_ != Part::kAll) {
    return;
  }
  note_peak();
  Holder& holder = holders_[block];
  const Bytes size = allocator_.size(block);
  by_category_[static_cast<size_t>(holder.category)] -= size;
  if (keeps_history_) {
    note_change(holder, -size);
  }
  holder.category = MemoryCategory::kGradients;
  holder.what = What::kGradient;
  by_category_[static_cast<size_t>(holder.category)] += size;
  if (keeps_history_) {
    note_change(holder, size);
  }
}

void LiveMemory::note_change(const Holder& holder, Bytes bytes) {
  const HolderKey key{holder.category, holder.unit, holder.what, holder.op};
  const auto number = static_cast<uint32_t>(holder_ids_.size());
  changes_.push_back({holder_ids_.try_emplace(key, number).first->second, bytes});
}

const char* LiveMemory::what_name(What what) {
  constexpr const char* kNames[] = {"shard",
                                    "optimizer state",
                                    "bucket",
                                    "ignored parameter",
                                    "saved",
                                    "saved again",
                                    "handed on",
                                    "unsharded gradient",
                                    "unsharded parameters",
                                    "all-gather output",
                                    "shard of the smaller mesh",
                                    "reduction's input",
                                    "reduction's output",
                                    "gradient of the shard",
                                    "copy between host and device"};
  return kNames[static_cast<size_t>(what)];
}

std::string LiveMemory::what_text(What what, uint32_t op, const plan::Workload& workload) {
  std::string out = what_name(what);
  if (what == What::kSaved || what == What::kSavedAgain || what == What::kHandedOn) {
    out += " by ";
    out += op < workload.operators.size()
               ? workload.operators[op].name
               : name_of(workload.communications[op - workload.operators.size()].kind);
  }
  return out;
}

void LiveMemory::list_alive(const plan::Workload& workload) {
  std::map<std::tuple<MemoryCategory, UnitId, std::string>, AliveAtPeak> rows;
  for (Block block = 0; block < holders_.size(); ++block) {
    const Holder& holder = holders_[block];
    if (!holder.alive) {
      continue;
    }
    const std::string what = what_text(holder.what, holder.op, workload);
    AliveAtPeak& row = rows[{holder.category, holder.unit, what}];
    row.category = holder.category;
    row.unit = holder.unit;
    row.what = what;
    row.bytes += allocator_.size(block);
    row.requested += holder.requested;
    ++row.count;
  }
  for (auto& [key, row] : rows) {
    out_.alive.push_back(std::move(row));
  }
  std::stable_sort(out_.alive.begin(), out_.alive.end(),
                   [](const AliveAtPeak& x, const AliveAtPeak& y) { return x.bytes > y.bytes; });
}

void LiveMemory::take_snapshot(Snapshot& now) const {
  now.used.clear();
  for (Block block = 0; block < allocator_.blocks(); ++block) {
    if (allocator_.used(block)) {
      now.used.push_back({allocator_.address(block), allocator_.size(block)});
    }
  }
  std::sort(now.used.begin(), now.used.end());
  now.free = allocator_.free_blocks();
  now.retired.clear();
  for (const CachingAllocator::Retired& each : allocator_.retired()) {
    now.retired.push_back(
        {allocator_.address(each.block), static_cast<Bytes>(recorded_ - each.stamp)});
  }
  now.reserved = allocator_.reserved();
}

void LiveMemory::begin_history(bool keep) {
  keeps_history_ = keep;
  history_.clear();
  changes_.clear();
  holder_ids_.clear();
  highest_changes_ = 0;
}

void LiveMemory::note_history(uint32_t item, uint32_t op) {
  const auto changes = static_cast<uint32_t>(changes_.size());
  if (highest_ > allocator_.allocated()) {
    history_.push_back({item, op, highest_by_category_, highest_changes_});
  }
  if (history_.empty() || history_.back().changes != changes) {
    history_.push_back({item, op, by_category_, changes});
  }
  highest_ = allocator_.allocated();
  highest_by_category_ = by_category_;
  highest_changes_ = changes;
}

void LiveMemory::take_changes(const plan::Workload& workload, StepMemory& out) {
  // Operators of one name are one holder.
  std::map<std::tuple<MemoryCategory, UnitId, std::string>, uint32_t> rows;
  std::vector<uint32_t> row_of(holder_ids_.size());
  out.holders.clear();
  for (const auto& [key, id] : holder_ids_) {
    const auto& [category, unit, kind, op] = key;
    const std::string what = what_text(kind, op, workload);
    const auto [at, is_new] =
        rows.try_emplace({category, unit, what}, static_cast<uint32_t>(out.holders.size()));
    if (is_new) {
      out.holders.push_back({category, unit, what});
    }
    row_of[id] = at->second;
  }
  out.changes = std::move(changes_);
  changes_.clear();
  for (MemoryChange& change : out.changes) {
    change.holder = row_of[change.holder];
  }
}

std::vector<MemoryMoment> LiveMemory::history_of(const schedule::PlannedStep& step) const {
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
    out.push_back({at, each.bytes, each.changes});
  }
  return out;
}

}  // namespace shardlens::sim
