#include <algorithm>
#include <optional>
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
  const bool compiled = out_.software.compile != Compile::kNone;
  if (compiled && compiles_loss(out_.program)) {
    return compiled_loss(vocabulary);
  }
  if (compiled || !fuses()) {
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
  head_ = {module, unit(), shape, divided_dimension() == 0};
  if (head_->divided) {
    (void)gather_rows(shape.in);
    head_->shape.out /= plan_.plan.loss_parallel ? 1 : tensor_ranks();
    divided_dimensions_.erase(module);  // what its product needs is done once for all parts
  }
  leave();
  ends_with_loss_ = true;
}

// [Note: Loss in parts] Each part's gradients are computed at once, and added to those of the parts
// before, so that its logits are freed before the next part's are made. The last part is
// differentiated when backward begins. What autograd keeps of the others are their rows of the
// head's input, or of its gradient, which takes their places.
//
// torchtitan 0.3 (ChunkedLossWrapper in components/loss.py) divides the tokens of each sample,
// which copies the head's input if there are several samples. The gradient of the input goes part
// by part into an fp32 tensor of all rows, and that of the head's weight is added up in the dtype
// of the reduction. Its variable `logits` keeps those of the last part until the loss is complete.
void WorkloadBuilder::loss(int64_t vocabulary) {
  if (!head_) {
    return divided_ == Divided::kFeatures ? parallel_loss(vocabulary) : whole_loss(vocabulary);
  }
  const Head head = *std::exchange(head_, std::nullopt);
  ends_with_loss_ = false;
  const int64_t rows = rows_;
  const bool in_checkpoint = std::exchange(in_checkpoint_, false);
  const int64_t parts = std::min(*out_.software.loss_chunks, rows);
  if (program_ == Program::kTorchtitan03) {
    rows_ = rows / parts;
    begin_parts(head, vocabulary);
  }
  rows_ = (rows + parts - 1) / parts;
  open_.push_back({.module = head.module, .unit = head.unit});
  loss_in_parts(head, vocabulary, rows);
  open_.pop_back();
  in_checkpoint_ = in_checkpoint;
  rows_ = rows;
}

// Whether the head is the last module of a unit that has other modules too: then it is called by
// itself. In the root's unit its parameters are unsharded until backward ends.
bool WorkloadBuilder::calls_head_alone(const Head& head) const {
  const Unit& of = plan_.units[head.unit];
  const auto trains = [this](uint32_t parameter) {
    return plan_.tree.parameters[parameter].requires_grad;
  };
  return program_ == Program::kTorchtitan03 && head.unit != 0 && of.modules.size() > 1 &&
         plan_.tree.modules[of.modules.back()].fqn == head.module && of.api == Api::kFullyShard &&
         !of.optimizer_in_backward && plan_.plan.dialect == Dialect::kFsdp2 &&
         plan_.plan.views == Views::kFresh && plan_.plan.layout == Layout::kPerParameter &&
         std::ranges::all_of(of.parameters, trains);
}

void WorkloadBuilder::begin_parts(const Head& head, int64_t vocabulary) {
  const DType dtype = plan_.param_dtype(head.unit);
  const Bytes values = out_.batch * out_.seq * head.shape.in * size_of(dtype);
  if (out_.batch > 1) {
    Operator copy = make(OperatorKind::kElementwise, "aten::clone");
    copy.read = copy.written = values;
    forward(std::move(copy), values, {});
  }
  Operator gradient = make(OperatorKind::kElementwise, "aten::zeros_like");
  gradient.dtype = DType::kF32;
  const Bytes sum = values / size_of(dtype) * size_of(DType::kF32);
  gradient.read = sum;  // written, but saved and not handed on
  const int64_t logits =
      head.divided && plan_.plan.loss_parallel ? vocabulary / tensor_ranks() : vocabulary;
  gradient.saved = sum + (out_.batch > 1 ? 2 : 1) * values + rows_ * logits * size_of(dtype);
  Operator cast = make(OperatorKind::kElementwise, "aten::_to_copy");
  cast.read = sum;
  cast.written = values;
  forward(std::move(gradient), 0, {std::move(cast)});
  if (head.divided && !plan_.plan.sequence_parallel) {
    sum_gradient_of(values, 1);  // of which each rank has a term
  }
  if (calls_head_alone(head)) {
    call_last_module_of(head.unit);
  }
}

// To be added to those that differentiate the operator `forward`.
Operator WorkloadBuilder::make_backward(std::string_view name, size_t forward) const {
  Operator out = make(OperatorKind::kElementwise, name);
  out.phase = Phase::kBackward;
  out.forward = static_cast<int32_t>(forward);
  return out;
}

// The gradient of a part's input goes to its rows of the fp32 tensor.
void WorkloadBuilder::copy_input_gradient(size_t product, int64_t features) {
  std::vector<Operator>& backward = backward_[product];
  if (backward.empty()) {
    return;
  }
  Operator copy = make_backward("aten::copy_", product);
  const Bytes sum = rows_ * features * size_of(DType::kF32);
  copy.read = 2 * sum;
  copy.takes = takes_before(1);
  backward.back().takes = kTakesGradient;
  if (copy.dtype != DType::kF32) {
    Operator cast = make_backward("aten::_to_copy", product);
    cast.read = rows_ * features * size_of(cast.dtype);
    cast.written = sum;
    cast.takes = takes_before(1);
    backward.push_back(std::move(cast));
  }
  backward.push_back(std::move(copy));
}

size_t WorkloadBuilder::add_part(const Head& head, int64_t vocabulary) {
  const bool titan = program_ == Program::kTorchtitan03;
  size_t at = out_.operators.size();
  linear(head.shape);
  while (out_.operators[at].kind != OperatorKind::kGemm) {  // what the product reads
    ++at;
  }
  if (titan) {
    out_.operators[at].saved = 0;  // the tensors of all rows are kept
    kept_[at] = 0;
    copy_input_gradient(at, head.shape.in);
  }
  if (head.divided) {
    divided_ = Divided::kFeatures;
    if (plan_.plan.loss_parallel) {
      parallel_loss(vocabulary);
      divided_ = Divided::kNothing;
    } else {
      gather_features(vocabulary);
      whole_loss(vocabulary);
    }
  } else {
    whole_loss(vocabulary);
  }
  if (!requires_grad_ || is_frozen("weight")) {
    return at;
  }
  // To the gradient so far. The first operator is the weight's gradient, unless there is a bias.
  std::vector<Operator> sum{make_backward(titan ? "aten::add" : "aten::add_", at)};
  const DType reduced = titan ? plan_.reduce_dtype(head.unit) : sum.front().dtype;
  const int64_t numbers = head.shape.in * head.shape.out;
  sum.front().flops = numbers;
  sum.front().read = 3 * numbers * size_of(reduced);
  sum.front().takes = titan ? takes_before(1) : kTakesGradient;
  if (titan) {
    backward_[at].front().takes = kTakesGradient;
  }
  if (reduced != sum.front().dtype) {  // autograd casts it, because no hook of the unit has run
    Operator cast = make_backward("aten::_to_copy", at);
    cast.read = numbers * size_of(cast.dtype);
    cast.written = numbers * size_of(reduced);
    cast.takes = takes_before(1);
    sum.insert(sum.begin(), std::move(cast));
  }
  backward_[at].insert(backward_[at].begin() + (titan ? 1 : 0), sum.begin(), sum.end());
  return at;
}

// Makes the first part of steps of a part, which makes what the others add to: the weight's
// gradient, or that in the dtype of the reduction. `sum`: the index of what adds.
void WorkloadBuilder::begin_sum(std::vector<Step>& part, size_t sum) {
  part[sum - 1].op.takes = kTakesGradient;
  part.erase(part.begin() + static_cast<std::ptrdiff_t>(sum));
}

// `rows`: of all `parts`.
void WorkloadBuilder::loss_in_parts(const Head& head, int64_t vocabulary, int64_t rows) {
  const int64_t parts = std::min(*out_.software.loss_chunks, rows);
  const size_t first = out_.order.size();
  (void)add_part(head, vocabulary);
  std::vector<Step> part = take_back(first);
  std::optional<size_t> sum;
  for (size_t i = 0; i < part.size(); ++i) {
    Operator& op = part[i].op;
    if (op.takes == takes_before(1) && op.name == "aten::add") {
      sum = i;
    }
    op.phase = Phase::kLoss;
    op.forward = -1;
    op.takes = 0;
    op.sums = 0;
    op.takes_residual = false;
    op.saved = op.frees = 0;
    if (part[i].communication) {
      part[i].communication->phase = Phase::kLoss;
    }
  }
  std::vector<Step> first_part = part;
  if (sum) {
    begin_sum(first_part, *sum);
  }
  for (int64_t i = 1; i < parts; ++i) {
    for (const Step& each : i == 1 ? first_part : part) {
      if (each.communication) {
        communicate(*each.communication, each.communication->bytes);
      } else {
        forward(each.op, each.op.read, {});
      }
    }
  }
  const size_t product = add_part(head, vocabulary);
  if (sum) {
    // Autograd has freed the gradient of the logits when it casts that of the weight, which comes
    // after both products: in this order nothing else takes it.
    std::vector<Operator>& backward = backward_[product];
    const auto add = std::ranges::find(backward, "aten::add", &Operator::name);
    std::rotate(backward.begin(), std::next(add), backward.end());
  }
  if (program_ != Program::kTorchtitan03) {
    out_.operators[product].saved = out_.operators[product].saved * rows / rows_;
  }
}

}  // namespace shardlens::plan
