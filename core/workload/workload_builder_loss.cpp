#include <algorithm>
#include <utility>

#include "core/workload/workload_builder.h"

namespace shardlens::plan {
namespace {

constexpr Bytes kLabelBytes = 8;

}  // namespace

void WorkloadBuilder::loss_of(const Unfused& part, int64_t vocabulary) {
  const size_t before = out_.operators.size();
  unfused(part, part.backward.empty() ? OperatorKind::kElementwise : OperatorKind::kLoss,
          vocabulary);
  for (size_t i = before; i < out_.operators.size(); ++i) {
    out_.operators[i].phase = Phase::kLoss;
  }
}

void WorkloadBuilder::whole_loss(int64_t vocabulary) {
  if (out_.software.compile != Compile::kNone) {
    return compiled_loss(vocabulary);
  }
  if (!fuses()) {
    return loss_of(is_engine() ? unfused_cross_entropy() : unfused_loss(), vocabulary);
  }
  Operator op;
  op.kind = OperatorKind::kLoss;
  op.phase = Phase::kLoss;
  op.name = "aten::cross_entropy_loss";
  const Bytes logits = rows_ * vocabulary * size_of(DType::kF32);
  op.flops = 5 * rows_ * vocabulary;
  op.read = logits + rows_ * kLabelBytes;
  op.written = logits;
  op.saved = logits;
  Operator grad = op;
  grad.name = "aten::_log_softmax_backward_data";
  grad.flops = 3 * rows_ * vocabulary;
  grad.read = 2 * logits;
  grad.saved = 0;
  forward(op, op.read, {grad});
}

void WorkloadBuilder::parallel_loss(int64_t vocabulary) {
  for (const Unfused& part : unfused_parallel_loss()) {
    loss_of(part, vocabulary / tensor_ranks());
    reduce_loss();
  }
}

void WorkloadBuilder::head(const std::string& module, const Linear& shape) {
  if (out_.software.loss_chunks.value_or(1) == 1) {
    enter(module);
    Linear part = shape;
    const bool gathers = divided_dimension() == 0 && !plan_.plan.loss_parallel;
    part.out /= gathers ? tensor_ranks() : 1;
    linear(part);
    if (gathers) {
      gather_features(shape.out);
    }
    return leave();
  }
  enter(module);
  head_ = {module, unit(), shape};
  leave();
  ends_with_loss_ = true;
}

// [Note: Loss in parts] Each part's gradients are computed at once, and added to those of the parts
// before, so that its logits are freed before the next part's are made. The last part is
// differentiated when backward begins. What autograd keeps of the others are their rows of the
// head's input, or of its gradient, which takes their places.
void WorkloadBuilder::loss(int64_t vocabulary) {
  if (!head_) {
    return divided_ == Divided::kFeatures ? parallel_loss(vocabulary) : whole_loss(vocabulary);
  }
  const Head head = *std::exchange(head_, std::nullopt);
  ends_with_loss_ = false;
  const int64_t rows = rows_;
  const int64_t parts = std::min(*out_.software.loss_chunks, rows);
  rows_ = (rows + parts - 1) / parts;
  open_.push_back({.module = head.module, .unit = head.unit});
  const bool in_checkpoint = std::exchange(in_checkpoint_, false);
  const size_t first = out_.operators.size(), items = out_.order.size();
  const auto differentiated = [&](size_t at) {
    linear(head.shape);
    while (out_.operators[at].kind != OperatorKind::kGemm) {  // what the product reads
      ++at;
    }
    whole_loss(vocabulary);
    if (requires_grad_ && !is_frozen("weight")) {
      Operator sum = make(OperatorKind::kElementwise, "aten::add_");  // to the gradient so far
      sum.flops = head.shape.in * head.shape.out;
      sum.read = 3 * sum.flops * size_of(sum.dtype);
      sum.takes = kTakesGradient;
      backward_[at].insert(backward_[at].begin(), std::move(sum));
    }
    return at;
  };
  (void)differentiated(first);
  std::vector<Operator> part(out_.operators.begin() + static_cast<std::ptrdiff_t>(first),
                             out_.operators.end());
  for (size_t i = out_.operators.size(); i-- > first;) {
    part.insert(part.end(), backward_[i].begin(), backward_[i].end());
  }
  out_.operators.resize(first);
  out_.order.resize(items);
  for (std::vector<Bytes>* each : {&kept_, &results_}) {
    each->resize(first);
  }
  backward_.resize(first);
  for (int64_t i = 1; i < parts; ++i) {
    for (Operator each : part) {
      each.phase = Phase::kLoss;
      each.forward = -1;
      each.takes = 0;
      each.sums = 0;
      each.takes_residual = false;
      each.saved = each.frees = 0;
      const Bytes input = each.read;
      forward(std::move(each), input, {});
    }
  }
  const size_t last = out_.operators.size();
  const size_t product = differentiated(last);
  out_.operators[product].saved = out_.operators[product].saved * rows / rows_;
  open_.pop_back();
  in_checkpoint_ = in_checkpoint;
  rows_ = rows;
}

}  // namespace shardlens::plan
