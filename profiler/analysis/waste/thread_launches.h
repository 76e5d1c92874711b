#pragma once

#include <cstdint>
#include <vector>

#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// The launches of a trace, by host thread and time. It is made when first asked for.
//
// Ownership  the arguments must outlive it.
// Threads    one at a time.
class ThreadLaunches {
 public:
  ThreadLaunches(const trace::Trace& trace, const Timeline& timeline)
      : trace_(trace), timeline_(timeline) {}

  struct Launch {
    Nanoseconds time = 0;
    const DeviceEvent* event = nullptr;
  };
  // The launches of a host thread, by time.
  [[nodiscard]] const std::vector<Launch>& of(uint32_t track) const;
  // What was launched on the range's thread while it was open.
  [[nodiscard]] std::vector<const DeviceEvent*> within(const trace::Event& range) const;
  // The launch of the last kernel, copy or memset before `instant`; nullptr: none.
  [[nodiscard]] const Launch* last_before(uint32_t track, Nanoseconds instant) const;

 private:
  const trace::Trace& trace_;
  const Timeline& timeline_;
  mutable std::vector<std::vector<Launch>> launches_;  // by host thread
};

}  // namespace shardlens::analysis
