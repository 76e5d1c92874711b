#pragma once

#include <cstddef>

#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// A pass that reads events in another order than the file's asks for each this many events before
// it reads it: of a large trace they are in no cache.
inline constexpr size_t kAhead = 16;
inline void prefetch(const trace::Event& event) {
  const char* const bytes = reinterpret_cast<const char*>(&event);
  __builtin_prefetch(bytes);
  __builtin_prefetch(bytes + sizeof(trace::Event) - 1);  // it may be in two lines
}

}  // namespace shardlens::analysis
