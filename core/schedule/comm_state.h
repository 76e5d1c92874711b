#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/schedule/action.h"

namespace shardlens::schedule {

// What the communication streams remember from one unit to the next; may be shared by several roots
// (pipeline stages).
//
// [Note: Numbering under sharing] Units and events of the n-th root are numbered after those of the
// roots made before it, so that a buffer or event has one name although one root's action may free
// what another root allocated.
class CommState {
 public:
  // A per-parameter all-gather's output, kept so that the next copy-in may run beside it.
  struct GatherSlot {
    BufferId buffer;
    EventId copied_out = kNoEvent;
  };
  // The last reduction that was issued; its buffers stay until the next reduction or the end of
  // backward.
  struct ReduceSlot {
    UnitId unit = kNoUnit;
    BufferId input, output;  // kind kNone: nothing to free
    EventId done = kNoEvent;
  };

  // All-gathers in flight beyond which the limiter waits. Source: _limiter_utils.py.
  static constexpr size_t kLimit = 2;

  std::optional<GatherSlot> gather;
  std::optional<ReduceSlot> reduce;

  // Pending frees, oldest first, each an event recorded when an unsharded buffer was given back.
  [[nodiscard]] size_t pending_frees() const { return pending_; }
  [[nodiscard]] EventId push_free();
  [[nodiscard]] EventId pop_free();
  // Frees so far; forget_frees(n) drops those of the first n that are still pending, because
  // something waited for them all.
  [[nodiscard]] uint64_t frees() const { return frees_; }
  void forget_frees(uint64_t count);

  // Reserves the numbers of a root with `units` units; returns its first event.
  EventId add_root(uint32_t units, uint32_t events);
  [[nodiscard]] uint32_t units() const { return units_; }

 private:
  std::vector<EventId> ring_;  // an event is recorded anew only after it was waited for
  size_t oldest_ = 0, pending_ = 0;
  uint64_t frees_ = 0;
  uint32_t units_ = 0;
  EventId events_ = 0;
};

}  // namespace shardlens::schedule
