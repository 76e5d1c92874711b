#pragma once

namespace shardlens {

// Lets the process keep memory that it frees, instead of giving it back to the system and taking it
// again: for programs that allocate and free the same amounts many times, in several threads. Call
// it at the start of the program. The process then keeps as much as it needed at most. No effect on
// systems without glibc.
void keep_freed_memory();

// Lets every large block that is freed go back to the system at once: for programs that stay open
// for long. Otherwise glibc puts larger and larger blocks between small ones, where their memory
// stays with the process. Call it at the start of the program. No effect on systems without glibc.
void give_back_freed_memory();

}  // namespace shardlens
