#include "core/base/heap.h"

#include <cstdlib>
#include <limits>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace shardlens {

void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kMapped = 32 << 20;    // the largest that glibc takes
  constexpr int kTogether = 64 << 20;  // bytes that a heap grows by; only what is used takes memory
  (void)::mallopt(M_MMAP_THRESHOLD, kMapped);
  (void)::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  (void)::mallopt(M_TOP_PAD, kTogether);
#endif
}

void give_back_freed_memory() {
#ifdef __GLIBC__
  constexpr int kMapped = 256 << 10;  // setting it keeps glibc from raising it
  (void)::mallopt(M_MMAP_THRESHOLD, kMapped);
#endif
}

}  // namespace shardlens
