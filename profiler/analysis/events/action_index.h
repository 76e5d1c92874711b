#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Actions and hook events of a trace by their sequence numbers.
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
  [[nodiscard]] const HookEvent* hook_of(const Entry& action) const;  // that caused it

  // When what needs the result of the collective issued by action `seq` began to wait for it: the
  // first wait of compute or the host on the event that was recorded behind it.
  [[nodiscard]] std::optional<Nanoseconds> needed_at(uint32_t seq) const;

  // What the limiter did under the same hook event, between the collective before action `seq` and
  // this one. On a CPU the compute stream is the host, so what another stream waits for there has
  // happened already.
  struct Limiter {
    Nanoseconds host_waited = 0;
    bool stream_waits = false;  // a wait was put on the action's own stream
  };
  [[nodiscard]] Limiter limiter(uint32_t seq) const;

 private:
  [[nodiscard]] size_t position(uint32_t seq) const;  // actions_.size(): not there

  std::vector<Entry> actions_;
  std::unordered_map<uint32_t, HookEvent> hooks_;
  std::unordered_map<schedule::EventId, std::vector<size_t>> waits_;  // positions in actions_
};

}  // namespace shardlens::analysis
