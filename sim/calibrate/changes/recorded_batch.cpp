#include "sim/calibrate/changes/recorded_batch.h"

#include <algorithm>
#include <set>
#include <utility>

namespace shardlens::sim {
namespace {

using plan::Operator;
using plan::OperatorKind;
using plan::Phase;

class Scaling {
 public:
  Scaling(const plan::Workload& recorded, const plan::ResolvedPlan& plan, int64_t from, int64_t to)
      : from_(from), to_(to) {
    for (const plan::Parameter& parameter : plan.tree.parameters) {
      sizes_.insert(parameter.numel);
    }
    for (const Operator& op : recorded.operators) {
      if (op.kind == OperatorKind::kGemm && op.phase == Phase::kForward) {
        weights_.insert({op.unit, op.n, op.k});
        rows_.insert({op.unit, op.m, 0});
      }
    }
  }

  void scale(Operator& op) const {
    op.saved = scaled(op.saved);
    op.frees = scaled(op.frees);
    op.scratch = scaled(op.scratch);
    if (op.kind == OperatorKind::kGemm) {
      return product(op);
    }
    if (op.kind == OperatorKind::kEmbedding || sizes_.contains(op.written / size_of(op.dtype))) {
      return;
    }
    if (op.kind == OperatorKind::kAttention) {
      op.batch = scaled(op.batch);
    }
    op.flops = scaled(op.flops);
    op.read = scaled(op.read);
    op.written = scaled(op.written);
  }

 private:
  struct Shape {
    UnitId unit = 0;
    int64_t first = 0, second = 0;
    friend auto operator<=>(const Shape&, const Shape&) = default;
  };

  [[nodiscard]] int64_t scaled(int64_t value) const {
    return static_cast<int64_t>(static_cast<__int128>(value) * to_ / from_);
  }

  void product(Operator& op) const {
    const int64_t element = size_of(op.dtype);
    const auto operands = [&op, element] {
      return op.batch * (op.m * op.k + op.k * op.n) * element;
    };
    const Bytes before = operands();
    const bool of_weight =
        op.phase == Phase::kBackward && rows_.contains({op.unit, op.k, 0}) &&
        (weights_.contains({op.unit, op.m, op.n}) || weights_.contains({op.unit, op.n, op.m}));
    int64_t& rows = op.batch > 1 ? op.batch : of_weight ? op.k : op.m;
    rows = scaled(rows);
    op.flops = 2 * op.batch * op.m * op.n * op.k;
    op.read += operands() - before;
    op.written = op.batch * op.m * op.n * element;
  }

  int64_t from_, to_;
  std::set<int64_t> sizes_;  // of parameters, in elements
  std::set<Shape> weights_;  // of products in forward
  std::set<Shape> rows_;     // of what they multiply
};

}  // namespace

plan::Workload with_batch(const plan::Workload& recorded,
                          const plan::ResolvedPlan& plan,
                          int64_t from,
                          int64_t to) {
  plan::Workload out = recorded;
  out.batch = to;
  const Scaling scaling(recorded, plan, from, to);
  for (Operator& op : out.operators) {
    if (op.phase != Phase::kOptimizer) {
      scaling.scale(op);
    }
  }
  return out;
}

}  // namespace shardlens::sim
