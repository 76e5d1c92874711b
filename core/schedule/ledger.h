#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/schedule/action.h"
#include "core/schedule/schedule.h"

namespace shardlens::schedule {

// Checks the invariants of a sequence of actions: a schedule's in tests, the engine's in debug
// mode, or a trace's.
//
// [Note: Invariants of the ledger]
// - kUseFull is issued only while the unit's buffer contains the result of an all-gather for which
//   compute has waited (FSDP1 makes its views before the wait); the buffer is freed only after
//   kUseShard.
// - Each generation of a buffer is allocated once and freed once, generations count up, and no
//   action uses a buffer that is not allocated.
// - An event is recorded before it is waited for.
// - A stream that reads a buffer which another stream wrote has waited for that stream. A buffer
//   is freed on a stream that has waited for all streams that used it. The happens-before relation
//   is tracked with a vector clock per stream, including host waits.
// - The number of freed unsharded buffers that the allocating stream has not waited for stays below
//   the limiter's limit (flat FSDP2).
// - finish(): all units are sharded, and all buffers are freed.
//
// Units    those of the schedule, with its ids; for several roots with one CommState, the units of
//          all roots one after the other.
// Threads  creates none; not thread-safe.
// Errors   the error of a broken invariant names op, unit and buffer; do not use the ledger after
//          an error.
class Ledger {
 public:
  Ledger(std::span<const UnitSpec> units, const ScheduleOptions& options);

  Result<void> consume(const Action& action);
  Result<void> finish() const;

  // Number of all-gathers that compute has not waited for yet, and its maximum so far.
  [[nodiscard]] uint32_t in_flight() const { return in_flight_; }
  [[nodiscard]] uint32_t peak_in_flight() const { return peak_in_flight_; }
  // Largest number of freed but not yet waited-for unsharded buffers at the allocation of another.
  [[nodiscard]] uint32_t peak_pending_frees() const { return peak_pending_frees_; }

 private:
  using Clock = std::array<uint64_t, kStreamCount>;  // by stream: position that happened before

  struct Buffer {
    bool live = false;
    uint32_t generations = 0;
    bool written = false;
    Stream writer = Stream::kCompute;
    uint64_t written_at = 0;
    Clock used{};  // last use on each stream
  };
  struct Unit {
    std::string name;
    mesh::GroupId kept = mesh::kNoGroup;  // UnitSpec::kept
    bool sharded = true;                  // its parameters are gathered, or copied as if they were
    bool flat_gather = true;              // gathered in place, no copy-out
    bool copy_in = false;
    bool full = false;
    bool gather_pending = false;
    uint64_t gathered_at = 0;
    std::array<Buffer, kBufferKindCount> buffers;
  };

  [[nodiscard]] Result<void> broken(const Action& action, const std::string& why) const;
  [[nodiscard]] bool sees(Stream stream, Stream of, uint64_t position) const;
  uint64_t tick(Stream stream);
  void use(Buffer& buffer, Stream stream, bool writes);
  // Empty if `stream` may read the buffer.
  [[nodiscard]] std::string unreadable(const Buffer& buffer, BufferKind kind, Stream stream) const;
  [[nodiscard]] Buffer& buffer_of(const Action& action);

  Result<void> allocate(const Action& action);
  Result<void> give_back(const Action& action);
  Result<void> gather(const Action& action);
  Result<void> use_full(const Action& action);
  Result<void> write_from(const Action& action, BufferKind source);
  Result<void> reduce(const Action& action);
  Result<void> wait_for(const Action& action);
  void settle_gathers();

  ScheduleOptions options_;
  std::vector<Unit> units_;
  std::vector<Clock> events_;
  std::vector<bool> recorded_;
  std::array<Clock, kStreamCount> clocks_{};
  std::deque<uint64_t> frees_;  // positions on compute at which unsharded buffers were freed
  uint32_t in_flight_ = 0, peak_in_flight_ = 0, peak_pending_frees_ = 0;
};

}  // namespace shardlens::schedule
