#pragma once

#include <cstdio>
#include <cstdlib>

namespace shardlens::fuzz {

// Ends the program, which is a finding, if `condition` is false. `what` should be true.
inline void require(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "broken: %s\n", what);
    std::abort();
  }
}

}  // namespace shardlens::fuzz
