// Builds what inductor makes of a block, torch 2.11: tests/tools/inductor_kernels.py records it.
// Products and attention stay kernels of their own, and nothing is fused into them.
#include "core/workload/compiled_builder.h"

#include <algorithm>
#include <utility>

namespace shardlens::plan {
namespace {

// Most terms of a sum that is not stored: torch._inductor.config.realize_reads_threshold.
constexpr size_t kMostTerms = 4;
// torch._inductor.scheduler.MixOrderReduction.can_fuse: sizes from which one kernel reduces along
// rows and along columns.
constexpr int64_t kLeastMixedNumbers = 5 << 20, kLeastMixedRows = 4096, kRowsPerColumn = 2;

}  // namespace

void CompiledBuilder::enter(const std::string& module) {
  PassBuilder::enter(module);
  if (open_.back().is_block && out_.software.compile == Compile::kBlock) {
    compiled_ = {};
  }
}

void CompiledBuilder::leave() {
  if (open_.back().is_block && compiles()) {
    close_block();
  }
  PassBuilder::leave();
}

void CompiledBuilder::finish_backward() {
  close_block();
  PassBuilder::finish_backward();
}

Bytes CompiledBuilder::bytes_of(const Value& value) const {
  Bytes out = 0;
  for (const uint32_t tensor : value) {
    out += compiled_.tensors[tensor].bytes;
  }
  return out;
}

// `value`, which is a tensor of this many features if it was not known.
CompiledBuilder::Value& CompiledBuilder::known(Value& value, int64_t features) {
  if (value.empty()) {
    const Operator sizes = make(OperatorKind::kElementwise, "");
    value.push_back(static_cast<uint32_t>(compiled_.tensors.size()));
    compiled_.tensors.push_back({rows_ * features * size_of(sizes.dtype), false});
    if (compiled_.residual.empty()) {
      compiled_.residual = value;
    }
  }
  return value;
}

// The last operator has made a tensor.
void CompiledBuilder::compiled_result(Bytes bytes) {
  if (!compiles()) {
    return;
  }
  compiled_.head_norm.reset();
  compiled_.current = {static_cast<uint32_t>(compiled_.tensors.size())};
  compiled_.tensors.push_back({bytes, false});
}

void CompiledBuilder::set_result(int64_t features) {
  end_norm();
  compiled_result(rows_ * features * size_of(make(OperatorKind::kElementwise, "").dtype));
}

void CompiledBuilder::set_sum(int64_t features) {
  set_result(features);
  compiled_.sum = {static_cast<uint32_t>(out_.operators.size() - 1), compiled_.current.front()};
}

bool CompiledBuilder::mixes_orders(int64_t rows, int64_t columns) {
  return rows * columns >= kLeastMixedNumbers && rows >= kLeastMixedRows &&
         rows >= kRowsPerColumn * columns;
}

// Stores the current value.
void CompiledBuilder::store_sum() {
  const bool is_residual = compiled_.current == compiled_.residual;
  if (compiled_.sum &&
      std::ranges::find(compiled_.current, compiled_.sum->second) != compiled_.current.end()) {
    const auto [adds, term] = *std::exchange(compiled_.sum, std::nullopt);
    Operator& op = out_.operators[adds];
    op.read += bytes_of(compiled_.current) - compiled_.tensors[term].bytes;
    op.flops +=
        (static_cast<int64_t>(compiled_.current.size()) - 1) * op.written / size_of(op.dtype);
    compiled_.current = {term};
    if (is_residual) {
      compiled_.residual = compiled_.current;
    }
    return;
  }
  Operator op = make(OperatorKind::kElementwise, "triton_poi_fused_add");
  const Bytes values = compiled_.tensors[compiled_.current.front()].bytes;
  op.read = bytes_of(compiled_.current);
  op.written = values;
  op.flops = (static_cast<int64_t>(compiled_.current.size()) - 1) * values / size_of(op.dtype);
  const Bytes input = op.read;
  forward(std::move(op), input, {});
  compiled_result(values);
  if (is_residual) {
    compiled_.residual = compiled_.current;
  }
}

void CompiledBuilder::compiled_add(int64_t features) {
  Value sum = known(compiled_.residual, features);
  for (const uint32_t tensor : compiled_.current) {
    if (std::ranges::find(sum, tensor) == sum.end()) {
      sum.push_back(tensor);
    }
  }
  if (sum == compiled_.residual) {  // of two branches, the one that did not run last
    compiled_result(rows_ * features * size_of(make(OperatorKind::kElementwise, "").dtype));
    sum.push_back(compiled_.current.front());
  }
  compiled_.current = compiled_.residual = std::move(sum);
  end_norm();
  compiled_.head_norm.reset();
  if (compiled_.current.size() > kMostTerms) {
    store_sum();
  }
}

void CompiledBuilder::store_current(int64_t features) {
  if (!compiled_.of_norm && known(compiled_.current, features).size() > 1) {
    store_sum();
  }
  compiled_.of_norm = false;
  compiled_.head_norm.reset();
}

// Gradients of an input that several products have are added where the sum is read, which is in the
// backward of the norm, or in the copy before the gradient of a gathered input is scattered. The
// result is `backward`.
void CompiledBuilder::compiled_linear(const Linear& shape,
                                      std::vector<Operator>& backward,
                                      bool copies,
                                      bool apart) {
  if (!compiled_.of_norm && known(compiled_.current, shape.in).size() > 1) {
    store_sum();
  }
  for (size_t i = 0; i < backward.size(); ++i) {
    if (backward[i].name == "aten::sum") {  // of a bias: along columns, in two kernels
      Operator second = backward[i];
      second.flops = 0;
      second.read = second.written;
      backward.insert(backward.begin() + static_cast<std::ptrdiff_t>(i++), std::move(second));
      backward[i - 1].written = 0;
    }
  }
  if (!shape.sums_input_grad || !requires_grad_) {
    return;
  }
  const bool routes = shape.routes && program_ != Program::kTransformers;
  if ((compiled_.of_norm && !routes) || (apart && !compiled_.norms.empty())) {
    ++compiled_.norms.back().consumers;
    return;
  }
  Operator* copy = copies ? &backward.back() : nullptr;
  if (compiled_.gathered && !copies) {
    std::vector<Operator>& of = backward_[compiled_.gathered->first];
    copy = of.empty() ? nullptr : &of.at(compiled_.gathered->second);
  }
  if (copy == nullptr) {
    backward.push_back(gradient_sum(shape.in));
    return;
  }
  ++copy->sums;
  copy->read += copy->written;
  copy->flops += copy->written / size_of(copy->dtype);
}

// One kernel for the norm and the sum that it normalises. Its backward is completed by
// close_block().
void CompiledBuilder::compiled_norm(std::string_view name, const Norm& shape) {
  Operator op =
      make(OperatorKind::kNorm, name == "aten::layer_norm" ? "triton_per_fused_native_layer_norm"
                                                           : "triton_per_fused_rms_norm");
  CompiledNorm norm{.op = static_cast<uint32_t>(out_.operators.size()),
                    .inputs = known(compiled_.current, shape.features)};
  norm.values = rows_ * shape.features * size_of(op.dtype);
  norm.kept = rows_ * shape.statistics * size_of(DType::kF32);
  norm.parameters = shape.weights * shape.features * size_of(op.dtype);
  norm.columns = shape.features;
  norm.weights = shape.weights;
  norm.residual = shape.sums_input_grad;
  norm.trains =
      (shape.weights > 0 && !is_frozen("weight")) || (shape.weights > 1 && !is_frozen("bias"));
  op.flops = 4 * rows_ * shape.features;
  const Bytes input = bytes_of(norm.inputs);
  op.read = input + norm.parameters;
  op.written = norm.values + norm.kept;
  // The output of another block, which further blocks read.
  if (out_.software.compile == Compile::kModel && norm.residual && norm.inputs.size() > 2) {
    op.read += norm.values;  // written in addition, but not what the next operator takes
    compiled_result(norm.values);
    norm.inputs = compiled_.residual = compiled_.current;
  }
  op.saved = norm.kept;
  for (const uint32_t tensor : norm.inputs) {
    CompiledTensor& each = compiled_.tensors[tensor];
    op.saved += std::exchange(each.saved, true) ? 0 : each.bytes;
  }
  Operator grad = make(OperatorKind::kNorm, std::string(op.name) + "_backward");
  grad.flops = 8 * rows_ * shape.features;
  forward(std::move(op), input, {std::move(grad)}, norm.trains);
  compiled_result(norm.values);
  compiled_.norms.push_back(std::move(norm));
  compiled_.of_norm = true;
  compiled_.gathered.reset();
}

// The gradients of all weights of a block's norms are sums along columns of what is alive at its
// end: one kernel, which with enough rows is that of the first norm's backward, and a small second
// one for each norm.
void CompiledBuilder::close_block() {
  if (compiled_.current.size() > 1 && out_.software.compile == Compile::kBlock) {
    store_sum();
  }
  Value inputs;
  Bytes gradients = 0;  // what the kernel reads, without inputs
  int64_t trained = 0;  // parameters
  for (const CompiledNorm& norm : compiled_.norms) {
    std::vector<Operator>& backward = backward_[norm.op];
    if (backward.empty()) {
      continue;
    }
    Operator& grad = backward.back();
    grad.sums = norm.consumers - 1;
    grad.takes_residual = norm.residual;
    grad.read = norm.consumers * norm.values + bytes_of(norm.inputs) + norm.kept + norm.parameters +
                (norm.residual ? norm.values : 0);
    grad.written = norm.values;
    if (!norm.trains) {
      continue;
    }
    trained += norm.weights;
    gradients += norm.consumers * norm.values + norm.kept;
    for (const uint32_t tensor : norm.inputs) {
      if (std::ranges::find(inputs, tensor) == inputs.end()) {
        inputs.push_back(tensor);
      }
    }
  }
  const CompiledNorm* first = compiled_.norms.empty() ? nullptr : &compiled_.norms.front();
  if (trained > 0 && !backward_[first->op].empty()) {
    std::vector<Operator>& backward = backward_[first->op];
    Operator& grad = backward.back();
    const Bytes read = gradients + bytes_of(inputs);
    Operator sums = grad;
    sums.name = "triton_red_fused_sum";
    sums.takes = kTakesGradient;
    sums.sums = 0;
    sums.takes_residual = false;
    sums.written = 0;  // small, and no gradient of an activation
    if (first->trains && mixes_orders(rows_, first->columns)) {
      grad.read = read + first->parameters + (first->residual ? first->values : 0);
    } else {
      sums.read = read;
      backward.insert(backward.begin(), sums);
    }
    for (int64_t i = 0; i < trained; ++i) {
      sums.flops = 0;
      sums.read = first->parameters;
      backward.insert(backward.end() - 1, sums);
    }
  }
  compiled_.norms.clear();
  end_norm();
}

void CompiledBuilder::compiled_head_norm(const Norm& shape) {
  const int64_t rows = rows_ * shape.groups;
  Operator op = make(OperatorKind::kNorm, "triton_per_fused_rms_norm");
  const Bytes values = rows * shape.features * size_of(op.dtype);
  const Bytes kept = rows * shape.statistics * size_of(DType::kF32);
  op.flops = 4 * rows * shape.features;
  op.read = values;
  op.written = values + kept;
  op.saved = values + kept;
  Operator grad = make(OperatorKind::kNorm, "triton_per_fused_rms_norm_backward");
  grad.flops = 8 * rows * shape.features;
  grad.read = 2 * values + kept;
  grad.written = values;
  const bool trains = shape.weights > 0 && !is_frozen("weight");
  std::vector<Operator> backward;
  if (trains) {
    Operator sums = grad;
    sums.name = "triton_red_fused_sum";
    sums.takes = kTakesGradient;
    sums.written = 0;
    if (!mixes_orders(rows, shape.features)) {
      backward.push_back(sums);
    }
    sums.flops = 0;
    sums.read = shape.features * size_of(op.dtype);
    backward.push_back(std::move(sums));
  }
  backward.push_back(std::move(grad));
  if (shape.sums_input_grad && requires_grad_) {
    backward.push_back(gradient_sum(shape.features * shape.groups));
  }
  const bool of_norm = compiled_.of_norm;
  const auto index = static_cast<uint32_t>(out_.operators.size());
  forward(std::move(op), values, std::move(backward), trains);
  compiled_result(values);
  compiled_.of_norm = of_norm;
  compiled_.head_norm = index;
}

// One kernel, or part of that of the norm before it. In backward the gradient is transposed by a
// kernel of its own.
void CompiledBuilder::compiled_rotary(int64_t features) {
  Operator op = make(OperatorKind::kElementwise, "triton_poi_fused_rotary");
  const Bytes values = rows_ * features * size_of(op.dtype);
  op.flops = 3 * rows_ * features;
  op.read = op.written = values;
  Operator grad = op;
  grad.name = "triton_poi_fused_rotary_backward";
  if (!compiled_.head_norm) {
    Operator copy = grad;
    copy.name = "triton_poi_fused_clone";
    copy.flops = 0;
    const bool of_norm = compiled_.of_norm;
    forward(std::move(op), values, {std::move(grad), std::move(copy)});
    compiled_result(values);
    compiled_.of_norm = of_norm;
    return;
  }
  const uint32_t norm = *compiled_.head_norm;
  out_.operators[norm].name = "triton_per_fused_rms_norm_rotary";
  out_.operators[norm].flops += op.flops;
  std::vector<Operator>& backward = backward_[norm];
  compiled_.head_norm.reset();
  if (backward.empty()) {
    return;
  }
  const bool mixed = backward.front().flops == 0 || backward.size() == 1;
  if (mixed) {
    grad.phase = Phase::kBackward;
    grad.forward = static_cast<int32_t>(norm);
    backward.insert(backward.begin(), std::move(grad));
  } else {
    backward.back().flops += grad.flops;
    backward.back().read += values;  // stores the gradient before the norm's weights, for their sum
  }
}

// Reads the logits as the product wrote them, and keeps two numbers of each row.
void CompiledBuilder::compiled_loss(int64_t vocabulary) {
  Operator op = make(OperatorKind::kLoss, "triton_red_fused_cross_entropy_loss");
  op.phase = Phase::kLoss;
  const Bytes logits = rows_ * vocabulary * size_of(op.dtype);
  const Bytes of_rows = 2 * rows_ * size_of(DType::kF32);
  op.flops = 5 * rows_ * vocabulary;
  op.read = logits;
  op.written = of_rows;
  op.saved = logits + of_rows;
  Operator grad = op;
  grad.name = "triton_poi_fused_cross_entropy_loss_backward";
  grad.flops = 3 * rows_ * vocabulary;
  grad.read = logits + of_rows;
  grad.written = logits;
  grad.saved = 0;
  forward(std::move(op), logits, {std::move(grad)});
}

}  // namespace shardlens::plan
