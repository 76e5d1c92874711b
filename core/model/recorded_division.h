#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/model/model_file.h"
#include "core/plan/resolved_plan.h"

namespace shardlens::plan {

// How the axis `tensor` of a plan's mesh divides an operator of a recorded step between the ranks.
struct DividedOperator {
  std::vector<bool> inputs, outputs, saved;  // by tensor: whether a rank has a part of it
  bool work = false;                         // its FLOPs
  bool batch = false, m = false, n = false, k = false;  // its sizes
  // Of forward: the collectives around it.
  bool gathers_rows = false;       // of the input `gathered`, before it
  bool sums_terms = false;         // of its result, after it
  bool gathers_features = false;   // of its result, after it
  bool partial_gradients = false;  // those of its parameters are sums over the ranks
  bool copies_rows = false;        // backward of an embedding: of the gradient of the whole table
  uint32_t gathered = 0;           // index of a tensor
  // Of backward: each rank's result is a term of the sum.
  bool sums_gradient = false;
};

// How the ranks of `tensor` divide the operators of a recorded step.
struct RecordedDivision {
  int64_t ranks = 1;
  std::vector<DividedOperator> operators;  // empty: nothing is divided
  // The first operator of the loss, if the ranks have parts of the vocabulary then (loss_parallel),
  // and the logits that it takes. Operators of the loss are replaced.
  std::optional<uint32_t> loss;
  uint32_t logits = 0;
};

// [Note: Division of recorded layers] A layer whose weight is divided by columns takes whole rows
// and makes features of which each rank has a part; one by rows takes such features, and its
// results are added up. What is between them, and what works on rows of which each rank has a part
// (sequence_parallel), has the same operators with a part of the numbers. So what a rank has of a
// tensor follows from what made it; the tensors of backward have the division of those whose
// gradients they are.
//
// The last layer by columns whose result no layer by rows takes is the head: its result is
// gathered, except with loss_parallel.
//
// Errors: InputError for layers that cannot work on what a rank has, and for sizes that the ranks
// do not divide.
[[nodiscard]] RecordedDivision recorded_division(const ResolvedPlan& plan,
                                                 const RecordedStep& step);

}  // namespace shardlens::plan
