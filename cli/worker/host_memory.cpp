// [Note: Host memory] A worker allocates with jemalloc and never returns memory to the system: each
// step reuses what the previous one freed, as with LibTorch's caching allocator on a GPU. With
// glibc's malloc the pages of large blocks are mapped again in every step, which takes up to half
// of the step, and because of small blocks between them the heap grows by a step's allocations in
// every step.

// The name is defined by jemalloc; see its manual, TUNING.
extern "C" {
extern const char* malloc_conf;
const char* malloc_conf = "dirty_decay_ms:-1,muzzy_decay_ms:-1";
}
