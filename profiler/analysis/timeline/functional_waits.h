#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "profiler/analysis/timeline/sources.h"

namespace shardlens::analysis {

// When the step waited for its functional collectives: `wait_tensor` of PyTorch.
//
// [Note: Functional waits] A trace does not say which collective a wait is for. Its tensor is the
// collective's output, so a wait is for the earliest one of the same number of elements that was
// called before it and that no other wait was for.
class FunctionalWaits {
 public:
  FunctionalWaits(const Sources& sources, const Timeline& timeline);
  // On a CPU when the wait began. With a device, when the work that was launched next after the
  // wait could have started: the host only enqueues a stream's wait.
  [[nodiscard]] std::optional<Nanoseconds> after(const Collective& c) const;
  // The call of the wait: an event. kNoIndex: none was for it.
  [[nodiscard]] uint32_t event_of(const Collective& c) const;
  // When the host called the wait.
  [[nodiscard]] std::optional<Nanoseconds> begin(const Collective& c) const;

 private:
  [[nodiscard]] std::optional<Nanoseconds> ready_after(uint32_t track, Nanoseconds waited) const;

  const trace::Trace& trace_;
  const Timeline& timeline_;
  std::map<uint32_t, uint32_t> waits_;  // by event of the collective
  struct Launched {
    Nanoseconds launched = 0, ready = 0;
    uint32_t thread = 0;
  };
  std::vector<Launched> launched_;  // compute and copies of a device, by launch
};

}  // namespace shardlens::analysis
