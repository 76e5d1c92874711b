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

void LiveMemory::begin(Bytes capacity, Part part) {
  part_ = part;
  allocator_.reset(capacity);
  holders_.clear();
  by_category_ = {};
  requested_ = 0;
  allocations_ = peak_at_ = 0;
  rising_ = failed_ = stopped_ = false;
  recorded_ = 0;
  highest_ = 0;
  out_ = {};
}

LiveMemory::Block LiveMemory::hold(
    Bytes bytes, Stream stream, MemoryCategory category, UnitId unit, What what, uint32_t op) {
  if (bytes == 0 || ended()) {
    return kNone;
  }
  if (part_ != Part::kAll && (stream == Stream::kCompute) != (part_ == Part::kCompute)) {
    return kElsewhere;
  }
  const auto block = allocator_.allocate(bytes, static_cast<uint32_t>(stream));
  if (!block) {
    failed_ = true;
    return kNone;
  }
  if (*block >= holders_.size()) {
    holders_.resize(allocator_.blocks());
  }
  holders_[*block] = {bytes, unit, op, category, what, true};
  if (part_ != Part::kAll) {
    Bytes& least = bytes <= CachingAllocator::kSmallSize ? least_small_ : least_large_;
    least = std::min(least, bytes);
    most_ = std::max(most_, allocator_.allocated());
    return *block;
  }
  ++allocations_;
  by_category_[static_cast<size_t>(category)] += allocator_.size(*block);
  requested_ += bytes;
  out_.peak_requested = std::max(out_.peak_requested, requested_);
  if (keeps_history_ && allocator_.allocated() > highest_) {
    highest_ = allocator_.allocated();
    highest_by_category_ = by_category_;
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

void LiveMemory::note_peak() {
  if (std::exchange(rising_, false)) {
    out_.at_peak = by_category_;
  }
}

void LiveMemory::drop(Block& block, bool later) {
  if (block == kNone || stopped_) {
    return;
  }
  if (block == kElsewhere) {
    block = kNone;
    return;
  }
  Holder& holder = holders_[block];
  if (part_ == Part::kAll) {
    note_peak();
    by_category_[static_cast<size_t>(holder.category)] -= allocator_.size(block);
    requested_ -= holder.requested;
  }
  holder.alive = false;
  if (later) {
    allocator_.retire(std::exchange(block, kNone), recorded_);
  } else {
    allocator_.free(std::exchange(block, kNone));
  }
}

void LiveMemory::become_gradient(Block block) {
  note_peak();
  Holder& holder = holders_[block];
  const Bytes size = allocator_.size(block);
  by_category_[static_cast<size_t>(holder.category)] -= size;
  holder.category = MemoryCategory::kGradients;
  holder.what = What::kGradient;
  by_category_[static_cast<size_t>(holder.category)] += size;
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

void LiveMemory::list_alive(const plan::Workload& workload) {
  std::map<std::tuple<MemoryCategory, UnitId, std::string>, AliveAtPeak> rows;
  for (Block block = 0; block < holders_.size(); ++block) {
    const Holder& holder = holders_[block];
    if (!holder.alive) {
      continue;
    }
    std::string what = what_name(holder.what);
    if (holder.what == What::kSaved || holder.what == What::kSavedAgain ||
        holder.what == What::kHandedOn) {
      what += " by ";
      what += holder.op < workload.operators.size()
                  ? workload.operators[holder.op].name
                  : name_of(workload.communications[holder.op - workload.operators.size()].kind);
    }
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
  for (Block block = 0; block < holders_.size(); ++block) {
    if (holders_[block].alive) {
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
}

void LiveMemory::note_history(uint32_t item, uint32_t op) {
  if (highest_ > allocator_.allocated()) {
    history_.push_back({item, op, highest_by_category_});
  }
  if (history_.empty() || history_.back().bytes != by_category_) {
    history_.push_back({item, op, by_category_});
  }
  highest_ = allocator_.allocated();
  highest_by_category_ = by_category_;
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
    out.push_back({at, each.bytes});
  }
  return out;
}

}  // namespace shardlens::sim
