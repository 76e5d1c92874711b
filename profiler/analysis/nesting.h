#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "profiler/trace/trace.h"

namespace shardlens::analysis {

// Calls `visit(event, open)` for each complete host event, track by track in order of start; `open`
// are the events of that track that contain its start, outermost first. An event that overruns the
// one around it is taken as open until its own end.
void walk_nested(const trace::Trace& trace,
                 const std::function<bool(const trace::Event&)>& wanted,
                 const std::function<void(uint32_t event, std::span<const uint32_t> open)>& visit);

// Events of one track whose start lies before an instant and whose end behind it: innermost first.
class RangeFinder {
 public:
  RangeFinder(const trace::Trace& trace, const std::function<bool(const trace::Event&)>& wanted);
  // Innermost range of `track` that contains `instant`, and those around it; empty if there is
  // none.
  [[nodiscard]] std::vector<uint32_t> around(uint32_t track, Nanoseconds instant) const;

 private:
  struct Node {
    uint32_t event;
    int32_t parent;  // within the track; -1: none
  };
  const trace::Trace& trace_;
  std::unordered_map<uint32_t, std::vector<Node>> tracks_;  // by start
};

}  // namespace shardlens::analysis
