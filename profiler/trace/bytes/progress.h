#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/error.h"

namespace shardlens::trace {

// How far reading a run has come; watched, and ended, from another thread. Analyzing it can be
// ended by the same.
struct Progress {
  std::atomic<uint64_t> total{0};  // bytes of all files, as they lie on disk; 0: not known yet
  std::atomic<uint64_t> bytes{0};  // of these, what was taken
  std::atomic<bool> stop{false};

  // Errors: RuntimeFault once it is to stop.
  void check() const {
    if (stop) {
      throw RuntimeFault("stopped");
    }
  }
};

}  // namespace shardlens::trace
