#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Looks up actions and hook events of a trace by sequence number.
class ActionIndex {
 public:
  explicit ActionIndex(const trace::Trace& trace);

  struct Entry {
    uint32_t seq = 0;
    Nanoseconds time = 0;
    const trace::ActionArgs* args = nullptr;
  };
  [[nodiscard]] const std::vector<Entry>& actions() const { return actions_; }  // by seq
  [[nodiscard]] const Entry* action(uint32_t seq) const;              // nullptr: not in the trace
  [[nodiscard]] const HookEvent* hook_of(const Entry& action) const;  // that caused the action

  // When the result of the collective issued by action `seq` was first needed: the first wait of
  // the compute stream or the host for the event that was recorded after the collective.
  [[nodiscard]] std::optional<Nanoseconds> needed_at(uint32_t seq) const;

  // Waits of the rate limiter under the same hook event, between the previous collective and action
  // `seq`. On a CPU the compute stream is the host, so by the time another stream waits for an
  // event, the event has already happened.
  struct Limiter {
    Nanoseconds host_waited = 0;
    bool stream_waits = false;  // a wait was enqueued on the action's own stream
  };
  [[nodiscard]] Limiter limiter(uint32_t seq) const;

 private:
  [[nodiscard]] size_t position(uint32_t seq) const;  // actions_.size(): not found

  std::vector<Entry> actions_;
  std::unordered_map<uint32_t, HookEvent> hooks_;
  std::unordered_map<schedule::EventId, std::vector<size_t>> waits_;  // positions in actions_
};

}  // namespace shardlens::analysis
