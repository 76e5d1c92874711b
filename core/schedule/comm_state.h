#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/schedule/action.h"

namespace shardlens::schedule {

// The state of the communication streams that is kept from one unit to the next. Several roots
// (pipeline stages) may share it.
//
// [Note: Numbering under sharing] Units and events of the n-th root are numbered after those of the
// earlier roots. So the ids of buffers and events are unique, although an action of one root may
// free a buffer that another root allocated.
class CommState {
 public:
  // The output of a per-parameter all-gather, kept so that the next copy-in can run concurrently
  // with its copy-out.
  struct GatherSlot {
    BufferId buffer;
    EventId copied_out = kNoEvent;
  };
  // A reduction that was issued; its buffers are kept until a later unit's reduction
  // (ScheduleOptions::reduce_inputs) or the end of backward.
  struct ReduceSlot {
    UnitId unit = kNoUnit;
    BufferId input, output;  // kind kNone: nothing to free
    EventId done = kNoEvent;
  };

  // Number of pending frees at which the limiter waits. Source: _limiter_utils.py.
  static constexpr size_t kLimit = 2;

  std::optional<GatherSlot> gather;
  std::vector<ReduceSlot> reduces;  // oldest first

  // Pending frees, oldest first: events recorded when an unsharded buffer was freed.
  [[nodiscard]] size_t pending_frees() const { return pending_; }
  [[nodiscard]] EventId push_free();
  [[nodiscard]] EventId pop_free();
  // Number of frees so far. forget_frees(n) removes those of the first n that are still pending,
  // because all of them have been waited for.
  [[nodiscard]] uint64_t frees() const { return frees_; }
  void forget_frees(uint64_t count);

  // Reserves the ids of a root with `units` units and `events` events; returns its first event.
  EventId add_root(uint32_t units, uint32_t events);
  [[nodiscard]] uint32_t units() const { return units_; }

 private:
  std::vector<EventId> ring_;  // an event is recorded again only after it was waited for
  size_t oldest_ = 0, pending_ = 0;
  uint64_t frees_ = 0;
  uint32_t units_ = 0;
  EventId events_ = 0;
};

}  // namespace shardlens::schedule
