#pragma once

#include <functional>
#include <vector>

#include "core/base/recorder.h"
#include "core/fsdp/run/root_units.h"

namespace shardlens::fsdp {

// [Note: Shadowed microbatches] A rank that has no data left must still issue the collectives of
// the others. It repeats the hooks of its last microbatch: those from the first forward with
// gradients after a backward to the end of the next backward, with the parameters that had
// gradients at each kGradsReady.
//
// Threads  the thread that trains.
class MicrobatchShadow {
 public:
  explicit MicrobatchShadow(RootUnits& units) : units_(units) {}

  void remember_from_now_on() { remembers_ = true; }
  void remember(const HookEvent& event);  // of every hook, before it has any effect
  [[nodiscard]] bool empty() const { return shadow_.empty(); }
  // Whether replay() is running.
  [[nodiscard]] bool replaying() const { return replaying_; }
  // Passes the hooks of the last microbatch to `raise`, with zeros as gradients.
  // Errors  UsageError if there is none yet.
  void require_remembered() const;
  void replay(const std::function<void(const HookEvent&)>& raise);

 private:
  struct Remembered {
    HookEvent event;
    std::vector<bool> gradients;
  };
  RootUnits& units_;
  bool remembers_ = false, replaying_ = false;
  bool first_ = true;                // no microbatch was remembered yet
  std::vector<Remembered> current_;  // of the current microbatch
  std::vector<Remembered> shadow_;   // of the last one
};

}  // namespace shardlens::fsdp
