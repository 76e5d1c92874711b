#pragma once

#include <cstdint>
#include <string>

#include "core/workload/workload.h"
#include "sim/calibrate/observation.h"

namespace shardlens::sim {

// The recorded pass of another run of the same program, with another length of sequences.
struct OtherSequence {
  std::string source;
  int64_t seq = 0;
  plan::Workload workload;
};

// The pass of `second`, for with_sequence() on that of `first`.
//
// Errors  InputError if the runs have the same length or one has none, if they differ in batch,
//         ranks or microbatches, and if they do not run the same operators.
[[nodiscard]] OtherSequence other_sequence(const Observation& first, const Observation& second);

// The pass `recorded`, of sequences of `from` tokens, with `to` tokens.
//
// [Note: Sequence of a recorded pass] Two lengths say how each number of an operator (dimensions,
// FLOPs, bytes) depends on the length s. One that is the same in both is constant. The others are
// c1·s + c2·s², as sums of what is in proportion to tokens and to pairs of tokens: this is exact
// for products, attention and whatever works on rows. Where c1 or c2 would be negative, the number
// has a constant part (the bytes of weights), and is taken as c0 + c1·s. A number with all three
// parts, such as the bytes of an operator with weights and scores, is not exact.
//
// Errors  InputError if an operator would be larger than any.
[[nodiscard]] plan::Workload with_sequence(const plan::Workload& recorded,
                                           int64_t from,
                                           const OtherSequence& other,
                                           int64_t to);

}  // namespace shardlens::sim
