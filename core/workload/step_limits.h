#pragma once

#include <cstdint>

namespace shardlens::plan {

// The largest steps that are accepted: far more than any machine runs, so that counts of elements
// and operations fit in 64 bits, and lists of actions in memory.
inline constexpr int64_t kMostMicrobatches = 10'000;         // a step lists the actions of each
inline constexpr int64_t kMostSamples = int64_t{1} << 20;    // of a microbatch
inline constexpr int64_t kLongestSample = int64_t{1} << 24;  // tokens
inline constexpr int64_t kMostLossChunks = 4096;             // of a microbatch
inline constexpr int64_t kMostMatmulTail = 1 << 20;          // blocks
inline constexpr int64_t kMostTokens = int64_t{1} << 28;     // of a microbatch

}  // namespace shardlens::plan
