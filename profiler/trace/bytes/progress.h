#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/error.h"

namespace shardlens::trace {

class PartSink;

// Progress of reading a run; another thread can watch it, and stop the reading with `stop`. `stop`
// also ends the analysis of the run.
struct Progress {
  std::atomic<uint64_t> total{0};  // size of all files on disk, in bytes; 0: not known yet
  std::atomic<uint64_t> bytes{0};  // bytes read so far
  std::atomic<bool> stop{false};
  PartSink* parts = nullptr;  // is offered what has been read of each trace; may be null

  // Errors: RuntimeFault if `stop` is set.
  void check() const {
    if (stop) {
      throw RuntimeFault("stopped");
    }
  }
};

}  // namespace shardlens::trace
