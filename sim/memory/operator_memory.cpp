#include "sim/memory/operator_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace shardlens::sim {
namespace {

using plan::Operator;
using plan::OperatorKind;
using plan::Phase;

// Whether the operator's output is part of what it saves.
bool keeps_its_output(const Operator& op) {
  return op.phase != Phase::kBackward &&
         (op.kind == OperatorKind::kAttention || op.kind == OperatorKind::kLoss);
}

// Whether the operator computes the gradient of W for a product x·W: the result has the shape of W,
// and the product sums over the rows of x.
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

// Finds the operators that take the gradients that backward's operators hand on.
class Handing {
 public:
  Handing(const plan::Workload& workload, std::vector<OperatorMemory>& out)
      : workload_(workload), out_(out) {}

  void run() {
    std::vector<uint32_t> backward;
    for (uint32_t i = 0; i < out_.size(); ++i) {
      if (out_[i].kind == OperatorMemory::Kind::kBackward) {
        backward.push_back(i);
      }
    }
    for (size_t at = 0; at < backward.size(); ++at) {
      const uint32_t next = at + 1 < backward.size() ? backward[at + 1] : kNone;
      take(backward[at], next);
    }
    for (const auto& [handed, user] : users_) {
      OperatorMemory& last = out_[user];
      last.ends.at(last.end_count++) = handed;
    }
  }

 private:
  static constexpr uint32_t kNone = 0xffffffffU;
  using Id = uint32_t;  // index into users_

  [[nodiscard]] const Operator& op(uint32_t index) const { return workload_.operators[index]; }
  [[nodiscard]] bool is_sum(uint32_t index) const {
    return index != kNone && op(index).name == "aten::add";
  }
  void use(Id id, uint32_t user) {
    if (id != kNone) {
      users_[id].second = user;
    }
  }
  static Id pop(std::vector<Id>& from) {
    if (from.empty()) {
      return kNone;
    }
    const Id last = from.back();
    from.pop_back();
    return last;
  }
  Id make(uint32_t index, uint32_t part, Bytes bytes) {
    out_[index].handed[part] = bytes;
    users_.push_back({{index, part}, index});
    return static_cast<Id>(users_.size() - 1);
  }

  void take(uint32_t index, uint32_t next) {
    const Operator& now = op(index);
    const bool sum = is_sum(index);
    use(current_, index);
    bool joins = false;
    if (sum) {
      const Id other = pop(waiting_);
      joins = other == kNone;
      use(joins ? residual_ : other, index);
    }
    if (out_[index].hands_on) {
      make_parts(index, next);
    }
    const bool last = sum || next == kNone || is_sum(next) || op(next).forward != now.forward;
    if (!last) {
      return;  // the next operator differentiates the same one and takes the same gradient
    }
    const bool product = now.kind == OperatorKind::kGemm || sum;
    if (joins || (now.kind == OperatorKind::kNorm && !is_sum(next) && residual_ == kNone)) {
      residual_ = made_;
    }
    current_ = made_;
    if (!parts_.empty() && product && !is_sum(next)) {
      waiting_.push_back(made_);
      current_ = pop(parts_);
    }
    made_ = kNone;
  }

  void make_parts(uint32_t index, uint32_t next) {
    const Bytes written = out_[index].written;
    Bytes first = written;
    if (next != kNone && op(next).forward >= 0 && op(next).forward != op(index).forward &&
        parts_.empty() &&
        (op(index).kind == OperatorKind::kAttention ||
         (op(index).kind == OperatorKind::kElementwise && !is_sum(index)))) {
      first = std::min(written, out_[static_cast<size_t>(op(next).forward)].written);
    }
    made_ = make(index, 0, first);
    for (uint32_t part = 1; part < kHanded && first < written; ++part) {
      const Bytes rest = written - first;
      const Bytes bytes = part + 1 == kHanded ? rest : std::min(first, rest);
      parts_.push_back(make(index, part, bytes));
      first += bytes;
    }
  }

  const plan::Workload& workload_;
  std::vector<OperatorMemory>& out_;
  std::vector<std::pair<HandedOn, uint32_t>> users_;  // each with the last operator that takes it
  std::vector<Id> parts_, waiting_;
  Id current_ = kNone, made_ = kNone, residual_ = kNone;
};

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
  Handing(workload, out).run();
  return out;
}

}  // namespace shardlens::sim
