#include "core/schedule/comm_state.h"

#include <algorithm>

namespace shardlens::schedule {

EventId CommState::push_free() {
  if (pending_ == ring_.size()) {
    // There are more frees than all-gathers only if a unit is resharded repeatedly without being
    // used; the oldest free has completed long ago.
    static_cast<void>(pop_free());
  }
  const EventId event = ring_[(oldest_ + pending_) % ring_.size()];
  ++pending_;
  ++frees_;
  return event;
}

EventId CommState::pop_free() {
  const EventId event = ring_[oldest_];
  oldest_ = (oldest_ + 1) % ring_.size();
  --pending_;
  return event;
}

void CommState::forget_frees(uint64_t count) {
  while (pending_ > 0 && frees_ - pending_ < count) {
    static_cast<void>(pop_free());
  }
}

EventId CommState::add_root(uint32_t units, uint32_t events) {
  const EventId first = events_;
  events_ += events;
  units_ += units;
  std::rotate(ring_.begin(), ring_.begin() + static_cast<ptrdiff_t>(oldest_), ring_.end());
  oldest_ = 0;
  const size_t frees = 8 * static_cast<size_t>(units) + 16;
  for (size_t i = 0; i < frees; ++i) {
    ring_.push_back(events_++);
  }
  return first;
}

}  // namespace shardlens::schedule
