#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "core/base/units.h"
#include "core/plan/workload.h"

namespace shardlens::sim {

// All gradients of the unit that have not come yet: of an embedding's table, whose size the
// operator does not show.
inline constexpr Bytes kRest = std::numeric_limits<Bytes>::max();

// What one operator does to memory: of plan::Operator, what a replay looks at again and again.
struct OperatorMemory {
  enum class Kind : uint8_t { kForward, kBackward, kRecompute, kOptimizer };
  Bytes saved = 0;       // kForward: kept for backward; kRecompute: made again
  Bytes written = 0;     // handed on to the next
  Bytes gradient = 0;    // kBackward: of a weight; of norms and biases nothing is said
  int32_t forward = -1;  // as Operator::forward
  int32_t users = 0;     // kForward: operators that differentiate it
  UnitId unit = 0;
  Kind kind = Kind::kOptimizer;
  bool hands_on = true;         // false: what it writes lies in what it saves, or in a gradient
  bool makes_gradient = false;  // kBackward: of its unit's parameters, if these have some
};

// By index into Workload::operators.
[[nodiscard]] std::vector<OperatorMemory> operator_memory(const plan::Workload& workload);

}  // namespace shardlens::sim
