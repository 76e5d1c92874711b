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

// Bookkeeper of the invariants of any action stream: a schedule's in tests, the engine's in
// debug mode, a trace's.
//
// [Note: What the ledger holds an action stream to]
// - Parameters become full only while their buffer holds an all-gather's result that compute has
//   waited for (FSDP1 makes its views before the wait); a buffer is freed only when they are not
//   full.
// - Each buffer is allocated once and freed once per generation, generations count up, and
//   nothing uses a buffer outside.
// - An event is recorded before it is waited for.
// - A stream that reads what another one wrote has waited for it, and a buffer is given back on
//   a stream that has waited for all that used it: happens-before is tracked with a vector clock
//   per stream, host waits included.
// - Frees of unsharded buffers that the allocating stream has not waited for stay below the
//   limiter's limit (flat FSDP2).
// - finish(): everything is sharded and given back.
//
// Units    those of the schedule, in its numbering; several roots on one CommState: their units
//          one after the other.
// Threads  none of its own.
// Errors   a broken invariant names op, unit and buffer; the ledger is of no use after it.
class Ledger {
 public:
  Ledger(std::span<const UnitSpec> units, const ScheduleOptions& options);

  Result<void> consume(const Action& action);
  Result<void> finish() const;

  // All-gathers issued that compute has not waited for, and their largest number so far.
  [[nodiscard]] uint32_t in_flight() const { return in_flight_; }
  [[nodiscard]] uint32_t peak_in_flight() const { return peak_in_flight_; }
  // Largest number of unsharded buffers that a new one found freed but not yet waited for.
  [[nodiscard]] uint32_t peak_pending_frees() const { return peak_pending_frees_; }

 private:
  using Clock = std::array<uint64_t, kStreamCount>;  // how much of each stream has happened before

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
    bool flat_gather = true;  // gathered in place, no copy-out
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
  bool sharded_ = false;
  std::vector<Unit> units_;
  std::vector<Clock> events_;
  std::vector<bool> recorded_;
  std::array<Clock, kStreamCount> clocks_{};
  std::deque<uint64_t> frees_;  // positions on compute at which unsharded buffers were freed
  uint32_t in_flight_ = 0, peak_in_flight_ = 0, peak_pending_frees_ = 0;
};

}  // namespace shardlens::schedule
