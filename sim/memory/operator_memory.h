#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/base/units.h"
#include "core/plan/workload.h"

namespace shardlens::sim {

// All gradients of the unit that have not come yet: of an embedding's table, whose size the
// operator does not show.
inline constexpr Bytes kRest = std::numeric_limits<Bytes>::max();

// A gradient that an operator of backward hands on, in up to three tensors.
inline constexpr size_t kHanded = 3;
// Those that end with one operator: two that it takes, and its own where nothing takes them.
inline constexpr size_t kEnds = kHanded + 2;
struct HandedOn {
  uint32_t op = 0, part = 0;
};

// What one operator does to memory: of plan::Operator, what a replay looks at again and again.
struct OperatorMemory {
  enum class Kind : uint8_t { kForward, kBackward, kRecompute, kOptimizer };
  Bytes saved = 0;    // kForward: kept for backward; kRecompute: made again
  Bytes written = 0;  // handed on: in forward to the next
  // kBackward: the tensors that it hands on, and those that nothing takes after it.
  std::array<Bytes, kHanded> handed{};
  std::array<HandedOn, kEnds> ends{};
  uint32_t end_count = 0;
  Bytes gradient = 0;    // kBackward: of a weight; of norms and biases nothing is said
  int32_t forward = -1;  // as Operator::forward
  int32_t users = 0;     // kForward: operators that differentiate it
  UnitId unit = 0;
  Kind kind = Kind::kOptimizer;
  bool hands_on = true;         // false: what it writes lies in what it saves, or in a gradient
  bool makes_gradient = false;  // kBackward: of its unit's parameters, if these have some
};

// By index into Workload::operators.
//
// [Note: Who takes a gradient] A workload lists backward's operators in order. What one makes goes
// to those that differentiate the operator before, but: an aten::add takes the two last that wait
// for a sum, the residual's gradient when no other waits; what attention or an element-wise
// operator makes, if larger than the next one's output, has a part for it and parts for those after
// it (two branches); and while such parts wait, the gradient of a product's input waits for the
// sum.
[[nodiscard]] std::vector<OperatorMemory> operator_memory(const plan::Workload& workload);

}  // namespace shardlens::sim
