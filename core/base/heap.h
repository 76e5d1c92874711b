#pragma once

namespace shardlens {

// Lets the process keep memory that it frees, instead of giving it back to the system and taking it
// again: for programs that allocate and free the same amounts many times, in several threads. Call
// it at the start of the program. The process then keeps as much as it needed at most. No effect on
// systems without glibc.
void keep_freed_memory();

}  // namespace shardlens
