#include "sim/memory/operator_memory.h"

#include <algorithm>

namespace shardlens::sim {
namespace {

using plan::Operator;
using plan::OperatorKind;
using plan::Phase;

// What it writes is among what it saves.
bool keeps_its_output(const Operator& op) {
  return op.phase != Phase::kBackward &&
         (op.kind == OperatorKind::kAttention || op.kind == OperatorKind::kLoss);
}

// Of a product x·W: the gradient of W has its shape and sums over the rows of x.
bool writes_parameter_gradient(const plan::Workload& workload, const Operator& op) {
  if (op.phase != Phase::kBackward || op.kind != OperatorKind::kGemm || op.forward < 0) {
    return false;
  }
  const Operator& product = workload.operators[static_cast<size_t>(op.forward)];
  return op.k == product.m && op.m * op.n == product.n * product.k;
}

OperatorMemory::Kind kind_of(Phase phase) {
  using Kind = OperatorMemory::Kind;
  switch (phase) {
    case Phase::kForward:
    case Phase::kLoss:
      return Kind::kForward;
    case Phase::kBackward:
      return Kind::kBackward;
    case Phase::kRecompute:
      return Kind::kRecompute;
    case Phase::kOptimizer:
      break;
  }
  return Kind::kOptimizer;
}

}  // namespace

std::vector<OperatorMemory> operator_memory(const plan::Workload& workload) {
  std::vector<OperatorMemory> out;
  out.reserve(workload.operators.size());
  for (const Operator& op : workload.operators) {
    OperatorMemory& each = out.emplace_back();
    each.saved = op.saved;
    each.written = op.written;
    each.forward = op.forward;
    each.unit = op.unit;
    each.kind = kind_of(op.phase);
    const bool of_table = op.phase == Phase::kBackward && op.kind == OperatorKind::kEmbedding;
    const bool of_weight = writes_parameter_gradient(workload, op);
    each.hands_on = !keeps_its_output(op) && !of_weight && !of_table;
    each.makes_gradient = op.phase == Phase::kBackward && op.kind != OperatorKind::kLoss;
    each.gradient = of_table ? kRest : of_weight ? op.written : 0;
  }
  for (const Operator& op : workload.operators) {
    if (op.phase == Phase::kBackward && op.forward >= 0) {
      ++out[static_cast<size_t>(op.forward)].users;
    }
  }
  return out;
}

}  // namespace shardlens::sim
