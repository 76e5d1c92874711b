// [Note: Host memory] A worker allocates with jemalloc and never gives memory back to the system:
// what one step frees the next one takes, as from LibTorch's caching allocator on a GPU. With
// glibc's malloc the pages of large blocks are made anew in every step, which costs up to half of
// it, and with small blocks between them the heap grows by a step's allocations each step.

// jemalloc's own name; see its manual, TUNING.
extern "C" {
extern const char* malloc_conf;
const char* malloc_conf = "dirty_decay_ms:-1,muzzy_decay_ms:-1";
}
