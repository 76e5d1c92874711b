#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/base/units.h"
#include "core/workload/workload.h"

namespace shardlens::sim {

// OperatorMemory::gradient of an embedding, whose operator does not have the size of its table: all
// gradients of the unit that do not exist yet.
inline constexpr Bytes kRest = std::numeric_limits<Bytes>::max();

// Number of tensors in which a backward operator hands on a gradient.
inline constexpr size_t kHanded = 3;
// Number of tensors that are freed after one operator: its inputs, and its own outputs that no
// operator takes.
inline constexpr size_t kEnds = kHanded + 5;
struct HandedOn {  // an output of an operator, by numbers
  uint32_t op : 30 = 0, part : 2 = 0;
};

// What one operator, or communication, does to memory: the part of plan::Operator that a replay
// needs.
struct OperatorMemory {
  enum class Kind : uint8_t { kForward, kBackward, kRecompute, kOptimizer };
  Bytes saved = 0;    // kForward: kept for backward; kRecompute: saved again
  Bytes written = 0;  // output; in forward it is handed on to the next operator
  Bytes scratch = 0;  // as Operator::scratch
  // kBackward, or of a loss in parts: gradient of a weight; norms and biases are not included.
  Bytes gradient = 0;
  // kBackward: sizes of the tensors that it hands on, and the tensors to free after it. kOptimizer:
  // the same of what foreach keeps between its operators. kForward and
  // kRecompute: of the logits, and parts of what it saves.
  std::array<Bytes, kHanded> handed{};
  std::array<HandedOn, kEnds> ends{};
  uint32_t end_count = 0;
  int32_t forward = -1;  // as Operator::forward
  int32_t users = 0;     // kForward: number of operators that differentiate it
  UnitId unit = 0;
  Kind kind = Kind::kOptimizer;
  bool of_norm = false;         // kBackward: differentiates a norm
  bool hands_on = true;         // false: its output is part of what it saves, or is a gradient
  bool makes_gradient = false;  // it creates gradients of its unit's parameters, if any
  bool in_place = false;        // communication: its result is in the tensor that it takes
};

// By plan::number_of().
//
// [Note: Who takes a gradient] A workload lists backward's operators in order. The gradient that an
// operator writes is taken by the operators that differentiate the preceding forward operator, with
// these exceptions. An aten::add takes two: the previous operator's, and the last gradient that
// waits for a sum, or the residual's if none waits. If the gradient written by attention or an
// element-wise operator is larger than the output of the next operator's forward, it has one part
// for that operator and further parts for later ones (several branches). While such parts wait, the
// gradient of a product's input waits for the sum.
//
// Operators with Operator::takes say which tensors of the same backward they take. Of those that
// none takes, the last is handed on, and the others are further parts. Names that end in "_" write
// into the tensor that was made first of those that they take.
[[nodiscard]] std::vector<OperatorMemory> operator_memory(const plan::Workload& workload);

}  // namespace shardlens::sim
