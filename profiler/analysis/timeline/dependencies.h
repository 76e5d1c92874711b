#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "profiler/analysis/events/intervals.h"
#include "profiler/analysis/events/launches.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// What each device event had to wait for in addition to the previous event in its stream, and when
// the host waited for the device. From cuda_sync events; empty if the trace has none.
//
// Complexity  O(n log n).
class Dependencies {
 public:
  static constexpr uint32_t kNone = trace::kNoIndex;

  Dependencies(const trace::Trace& trace, const Timeline& timeline);

  // The result is a position in Timeline::device_events, or kNone.
  [[nodiscard]] uint32_t before_in_stream(size_t i) const { return before_[i]; }
  // The last device event that this one's stream had to wait for through a CUDA event: the event
  // was recorded after it, and the wait was issued after the launch of the previous event in the
  // stream.
  [[nodiscard]] uint32_t waited_for(size_t i) const {
    return waited_for_.empty() ? kNone : waited_for_[i];
  }

  // A host call that returns when the device has finished the work launched before.
  struct HostWait {
    Interval when;
    uint32_t track = 0;      // track of the host thread
    uint32_t until = kNone;  // the awaited device event that ended last
  };
  [[nodiscard]] const std::vector<HostWait>& host_waits() const { return host_waits_; }  // by end
  // The times during which the host thread `track` waits.
  [[nodiscard]] const IntervalSet& waiting(uint32_t track) const { return waiting_.at(track); }

 private:
  void find_before();
  void order_streams();
  void add_stream_waits(const LaunchIndex& launches);
  void add_host_waits();
  // The last event of stream `track` that was launched before `instant`.
  [[nodiscard]] uint32_t last_launched(uint32_t track, Nanoseconds instant) const;
  [[nodiscard]] uint32_t stream_track(uint32_t device_track, int64_t stream) const;
  [[nodiscard]] Nanoseconds end_of(uint32_t i) const;
  [[nodiscard]] Nanoseconds launched(uint32_t i) const;

  const trace::Trace& trace_;
  const Timeline& timeline_;
  std::vector<uint32_t> before_;
  // Only of a trace with cuda_sync events.
  std::vector<uint32_t> waited_for_;
  std::vector<std::vector<uint32_t>> streams_;  // by track: positions in device_events
  std::map<std::pair<int64_t, int64_t>, uint32_t> track_of_;  // by device and stream
  std::vector<HostWait> host_waits_;
  std::vector<IntervalSet> waiting_;  // by track
};

}  // namespace shardlens::analysis
