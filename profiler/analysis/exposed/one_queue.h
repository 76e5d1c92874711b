#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "profiler/analysis/timeline/dependencies.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Finds traces in which the device ran all its streams as one queue, so that nothing computed while
// a collective ran: work that waited for no collective, was launched in time and had a free stream
// began only when the collective before it ended. CUDA_DEVICE_MAX_CONNECTIONS=1 does this.
//
// Complexity  O(n log n).
// Ownership   refers to what it is given.
class OneQueue {
 public:
  // `device_of`: by collective of the timeline, its position in device_events.
  OneQueue(const Timeline& timeline,
           const Dependencies& dependencies,
           const std::vector<uint32_t>& device_of);

  [[nodiscard]] bool found() const { return found_; }
  // The event that collective i held up for half of its length, at least, as a position in
  // device_events; nullopt: none, or the trace has not one queue.
  [[nodiscard]] std::optional<uint32_t> held_by(size_t i) const;

 private:
  [[nodiscard]] std::optional<uint32_t> held(size_t i, uint32_t own) const;

  const Timeline& timeline_;
  const Dependencies& dependencies_;
  std::vector<std::optional<uint32_t>> held_;  // by collective
  bool found_ = false;
};

}  // namespace shardlens::analysis
