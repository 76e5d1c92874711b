#pragma once

// Layout of the page that NowPage writes and read_rank_now reads; internal to profiler/record.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/units.h"

namespace shardlens::record {

inline constexpr uint64_t kNowMagic = 0x31574F4E4C4853ULL;  // "SHLNOW1"
inline constexpr size_t kNowBytes = size_t{64} * 1024;
inline constexpr uint32_t kNothing = 0xffffffffU;

// The collective after which an event was recorded.
struct EventSource {
  std::atomic<uint32_t> event{kNothing}, op{0}, unit{kNoUnit};
};

// Atomics without locks: the writer never waits. `version` is odd while the training thread writes.
struct NowLayout {
  // An event's source is overwritten after this many newer events.
  static constexpr size_t kEvents = 512;
  static constexpr size_t kNameBytes = size_t{48} * 1024;

  std::atomic<uint64_t> magic{0};
  std::atomic<uint32_t> version{0};
  std::atomic<uint32_t> finished{0}, in_step{0};
  std::atomic<int64_t> step{-1};
  std::atomic<uint32_t> hook{kNothing}, hook_unit{kNoUnit};
  std::atomic<uint32_t> action{0}, op{0}, stream{0}, unit{kNoUnit}, event{kNothing};
  std::atomic<int64_t> issued{0}, completed{0};
  std::atomic<uint64_t> last_completed{~uint64_t{0}};  // kind << 32 | unit
  std::array<EventSource, kEvents> events{};
  std::atomic<uint32_t> unit_count{0};
  std::array<char, kNameBytes> names{};  // FQNs, each terminated by '\0'
};
static_assert(sizeof(NowLayout) <= kNowBytes);

}  // namespace shardlens::record
