#include "core/workload/workload_builder.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/workload/product_casts.h"
#include "core/workload/routing.h"

namespace shardlens::plan {
namespace {

constexpr int64_t kFlopsPerMultiplyAdd = 2;
constexpr Bytes kIndexBytes = 8;

}  // namespace

void WorkloadBuilder::linear(const std::string& module, const Linear& shape) {
  enter(module);
  linear(shape);
  leave();
}

void WorkloadBuilder::gathered_linear(const std::string& module, const Linear& shape) {
  enter(module);
  Linear part = shape;
  const bool divided = divided_dimension() == 0;
  part.out /= divided ? tensor_ranks() : 1;
  linear(part);
  if (divided) {
    gather_features(shape.out);
  }
  leave();
}

void WorkloadBuilder::split_linear(const std::string& module, const Linear& shape) {
  enter(module);
  Linear part = shape;
  if (divided_dimension() == 1) {
    split_features(shape.in);
    part.in /= tensor_ranks();
    part.keeps_input = true;  // the rank's copy
  }
  linear(part);
  leave();
}

void WorkloadBuilder::linear(const Linear& given) {
  Linear shape = given;
  const auto adapter = adapter_ranks_.find(open_.back().module);
  const bool adapts = adapter != adapter_ranks_.end();
  shape.sums_input_grad = given.sums_input_grad || adapts;
  const int64_t divided = divided_dimension();
  const bool by_columns = divided == 0, by_rows = divided == 1;
  const bool gathered = by_columns && gather_rows(shape.in);
  const bool apart = by_columns && scatters_apart(), again = apart && !gathered;
  if (again && !compiles()) {
    gather_rows_of(rows_ * shape.in * size_of(plan_.param_dtype(unit())));
    shape.keeps_input = true;
  }
  Operator op = make(OperatorKind::kGemm, shape.bias ? "aten::addmm" : "aten::mm");
  const bool casts = shape.wide && size_of(op.dtype) < size_of(DType::kF32);
  if (casts) {
    cast_to_fp32(shape);
  }
  const DType dtype = casts ? DType::kF32 : op.dtype;
  const Bytes element = size_of(dtype);
  const auto gemm = [&](std::string_view name, int64_t m, int64_t n, int64_t k) {
    return matrix_product(name, dtype, m, n, k);
  };
  op = gemm(op.name, rows_, shape.out, shape.in);
  op.read += shape.bias ? shape.out * element : 0;
  const bool trains_weight = !is_frozen("weight");
  const bool trains_bias = shape.bias && !is_frozen("bias");
  const bool unkept = shape.keeps_input || unkept_input_;
  op.saved = trains_weight && unkept ? rows_ * shape.in * element : 0;
  unkept_input_ = !trains_weight && unkept;

  // The order of the two gradients in autograd's formulas: mm computes the gradient of its second
  // argument first, addmm that of its first matrix.
  Operator input = gemm("aten::mm", rows_, shape.in, shape.out);
  Operator weight = shape.transposed ? gemm("aten::mm", shape.out, shape.in, rows_)
                                     : gemm("aten::mm", shape.in, shape.out, rows_);
  std::vector<Operator> backward;
  if (trains_weight && !shape.bias) {
    backward.push_back(weight);
  }
  std::optional<size_t> sum_at;  // of the input's gradient, of which each rank has a term
  if (requires_grad_ && shape.input_grad) {
    backward.push_back(std::move(input));
    sum_at =
        by_columns && !plan_.plan.sequence_parallel ? std::optional(backward.size()) : std::nullopt;
  }
  if (trains_weight && shape.bias) {
    backward.push_back(std::move(weight));
  }
  if (trains_bias) {
    backward.push_back(bias_gradient(shape.out, element));
  }
  const size_t products = backward.size();
  cast_products(shape, op, backward);
  if (sum_at) {
    *sum_at += backward.size() - products;
  }
  const bool scatters = again && compiles() && requires_grad_;
  const bool copies = scatters || ((gathered || again) && requires_grad_ && out_.batch == 1);
  if (compiles()) {
    if (copies) {
      backward.push_back(copy_of(rows_ * shape.in * element));
    }
    compiled_linear(shape, backward, copies, apart);
  } else if (shape.sums_input_grad && requires_grad_ && !casts) {
    backward.push_back(gradient_sum(apart ? shape.in / tensor_ranks() : shape.in));
  }
  if (copies && !compiles()) {
    backward.push_back(copy_of(rows_ * shape.in * element));
  } else if (shape.routes && whole_tokens_ && requires_grad_) {
    backward.push_back(slice_of_rows(shape.in));
  }
  const size_t last = backward.size();
  routes_ = shape.routes;
  forward(std::move(op), rows_ * shape.in * element, std::move(backward),
          trains_weight || trains_bias);
  routes_ = false;
  if (scatters) {
    scatter_gradient_of(rows_ * shape.in * element, last);
  } else if (copies && compiles()) {
    compiled_gather(static_cast<uint32_t>(out_.operators.size() - 1), last - 1);
  }
  if (sum_at) {
    sum_gradient_of(rows_ * shape.in * element, *sum_at);
  }
  if (adapts) {
    adapt(given, adapter->second);
  }
  if (by_columns) {
    divided_ = Divided::kFeatures;
  } else if (by_rows) {
    sum_terms(shape.out);
  }
  compiled_result(rows_ * shape.out * element);
}

Operator WorkloadBuilder::matrix_product(
    std::string_view name, DType dtype, int64_t m, int64_t n, int64_t k) const {
  Operator out = make(OperatorKind::kGemm, name);
  out.dtype = dtype;
  out.m = m;
  out.n = n;
  out.k = k;
  out.flops = kFlopsPerMultiplyAdd * m * n * k;
  out.read = (m * k + k * n) * size_of(dtype);
  out.written = m * n * size_of(dtype);
  return out;
}

Operator WorkloadBuilder::bias_gradient(int64_t features, Bytes element) const {
  Operator out = make(OperatorKind::kElementwise, "aten::sum");
  out.flops = rows_ * features;
  out.read = out.flops * element;
  out.written = features * element;
  return out;
}

// Adds B (A x) to the layer's result. A layer that is divided by columns has rows of both: A's
// result is gathered; one that is divided by rows has columns of both: A's terms are added up, and
// the layer's and B's together. Compiled code adds in B's product. PEFT scales B's result in a
// kernel of its own.
// Source  Linear.forward() in peft/tuners/lora/layer.py, peft 0.17; ColwiseParallelLora and
//         RowwiseParallelLora in nemo_automodel/components/distributed/parallel_styles.py.
void WorkloadBuilder::adapt(const Linear& shape, int64_t rank) {
  const std::string layer = open_.back().module;
  const int64_t divided = divided_dimension();
  const int64_t ranks = divided < 0 ? 1 : tensor_ranks();
  const auto product = [&](std::string_view part, const Linear& each) {
    linear(layer + std::string(part), each);
  };
  product(".lora_A", {.in = shape.in,
                      .out = divided == 0 ? rank / ranks : rank,
                      .keeps_input = shape.keeps_input,
                      .sums_input_grad = shape.sums_input_grad,
                      .input_grad = shape.input_grad});
  if (divided >= 0) {
    const Bytes whole = rows_ * rank * size_of(plan_.param_dtype(unit())), part = whole / ranks;
    const Communication gather = activations(CollectiveKind::kAllGather, whole, whole);
    const Communication scatter = activations(CollectiveKind::kReduceScatter, whole, part);
    const bool gathers = divided == 0;
    communicate(gathers ? gather : scatter, gathers ? part : whole, gathers ? scatter : gather);
    forward(copy_of(whole), whole, {copy_of(whole)});
  }
  product(".lora_B", {.in = divided == 1 ? rank / ranks : rank, .out = shape.out});
  if (compiles()) {
    Operator& sum = out_.operators.back();
    sum.name = "aten::addmm";
    sum.read += rows_ * shape.out * size_of(sum.dtype);
    return;
  }
  elementwise("aten::mul", "aten::mul",
              {.read = shape.out,
               .written = shape.out,
               .flops = shape.out,
               .backward_read = shape.out,
               .backward_written = shape.out,
               .backward_flops = shape.out});
  elementwise("aten::add", "", {.read = 2 * shape.out, .written = shape.out, .flops = shape.out});
}

// What torch.autocast(dtype=torch.float32) does to a layer in half precision. Gradients are added
// in the parameters' dtype.
void WorkloadBuilder::cast_to_fp32(const Linear& shape) {
  Operator cast = make(OperatorKind::kElementwise, "aten::_to_copy");
  const int64_t numbers = rows_ * shape.in;
  cast.read = numbers * size_of(cast.dtype);
  cast.written = numbers * size_of(DType::kF32);
  Operator back = cast;
  std::swap(back.read, back.written);
  std::vector<Operator> backward{std::move(back)};
  if (shape.sums_input_grad && requires_grad_ && !compiles()) {
    backward.push_back(gradient_sum(shape.in));
  }
  const Bytes input = cast.read;
  forward(std::move(cast), input, std::move(backward));
}

void WorkloadBuilder::grouped_linear(const Grouped& shape) {
  const bool divided = !shape.rows.empty();
  const int64_t rows = divided ? rows_ : rows_ * shape.per_token;
  const int64_t experts = divided ? static_cast<int64_t>(shape.rows.size()) : shape.experts;
  const int64_t multiplied =
      divided ? std::accumulate(shape.rows.begin(), shape.rows.end(), int64_t{0}) : rows;
  const auto [chosen, of_each] =
      divided ? route(shape.rows) : route(rows, shape.experts, expert_skew_);
  Operator op = make(OperatorKind::kGemm, is_engine() ? "shardlens::grouped_mm" : kGroupedProduct);
  const Bytes element = size_of(op.dtype);
  const Bytes weights = chosen * shape.in * shape.out * element;
  const Bytes inputs = rows * shape.in * element, outputs = rows * shape.out * element;
  op.batch = chosen;
  op.m = of_each;
  op.n = shape.out;
  op.k = shape.in;
  op.flops = kFlopsPerMultiplyAdd * multiplied * shape.in * shape.out;
  op.read = inputs + weights;
  op.written = outputs;
  const bool trains = !is_frozen(shape.weight);
  op.saved = trains && shape.keeps_input ? inputs : 0;
  std::vector<Operator> backward;
  if (trains) {
    Operator& weight = backward.emplace_back(op);
    weight.m = shape.in;
    weight.n = shape.out;
    weight.k = of_each;
    weight.read = inputs + outputs;
    weight.written = experts * shape.in * shape.out * element;
  }
  if (requires_grad_) {
    Operator& input = backward.emplace_back(op);
    input.n = shape.in;
    input.k = shape.out;
    input.read = outputs + weights;
    input.written = inputs;
  }
  for (Operator& each : backward) {
    each.saved = 0;
  }
  if (shape.sums_input_grad && requires_grad_) {
    backward.push_back(gradient_sum(divided ? shape.in : shape.per_token * shape.in));
  }
  const bool trains_bias = shape.bias && !is_frozen(std::string(shape.weight) + "_bias");
  const bool titan = is_torchtitan(program_);
  Operator sum = make(OperatorKind::kElementwise, titan ? kAtomicSum : "aten::index_put");
  sum.flops = rows * shape.out;
  sum.read = outputs;
  sum.written = experts * shape.out * element;
  if (trains_bias && titan && compiles()) {  // inductor adds the bias where the result is read
    backward.insert(backward.begin(), sum);
  }
  forward(std::move(op), inputs, std::move(backward), trains || trains_bias);
  if (!shape.bias || (titan && compiles())) {
    return;
  }
  // The bias of each row's expert. Compiled code adds it where it reads it. In backward it sums the
  // gradients where it makes them, into zeros.
  const bool fused = compiles() && !is_engine();
  if (fused) {
    sum.name = "triton_poi_fused_new_zeros";
    sum.flops = sum.read = 0;
  }
  if (!is_engine() && !fused) {
    Operator index =
        make(OperatorKind::kElementwise, titan ? "aten::repeat_interleave" : "aten::index");
    index.read = titan ? sum.written : outputs;
    index.written = outputs;
    forward(index, index.read, {});
  }
  Operator add =
      make(OperatorKind::kElementwise, fused ? "triton_poi_fused_add_index" : "aten::add");
  add.flops = rows * shape.out;
  add.read = fused ? outputs : 2 * outputs;
  add.written = outputs;
  forward(add, add.read, trains_bias ? std::vector{sum} : std::vector<Operator>(), trains_bias);
}

// The weight of the innermost entered module.
const Parameter& WorkloadBuilder::weight() const {
  const std::string name = open_.back().module + ".weight";
  const auto found = std::ranges::find_if(plan_.tree.parameters, [&](const Parameter& each) {
    return each.fqn == name || std::ranges::find(each.aliases, name) != each.aliases.end();
  });
  SHARDLENS_CHECK(found != plan_.tree.parameters.end(), "a table is a parameter of its module");
  return *found;
}

Operator WorkloadBuilder::rows_of_table(Bytes whole) const {
  Operator rows = make(OperatorKind::kElementwise, "aten::clone");
  rows.read = rows.written = whole / tensor_ranks();
  rows.takes = takes_before(1);
  return rows;
}

// Of a table whose rows the axis `tensor` divides, DTensor computes the gradient of the whole table
// on every rank, of which the rank's rows are copied.
// Source  embedding_dense_backward_strategy() in torch/distributed/tensor/_ops/_embedding_ops.py,
//         torch 2.11; FSDPParam._get_grad_inner_tensor.
void WorkloadBuilder::embedding(int64_t features) {
  const bool divided = divided_dimension() == 0;
  Operator op = make(OperatorKind::kEmbedding, "aten::embedding");
  const Bytes values = rows_ * features * size_of(op.dtype);
  op.read = values + rows_ * kIndexBytes;
  op.written = values;
  op.saved = rows_ * kIndexBytes;
  Operator grad = make(OperatorKind::kEmbedding, "aten::embedding_dense_backward");
  grad.flops = rows_ * features;
  grad.read = op.read;
  grad.written = values;
  const Parameter& table = weight();
  std::vector<Operator> backward;
  if (!is_frozen("weight")) {
    backward.push_back(std::move(grad));
    if (divided) {
      backward.front().written = table.numel * size_of(op.dtype);
      backward.front().takes = kTakesGradient;
      backward.push_back(rows_of_table(backward.front().written));
    }
    if (!is_engine() && !table.aliases.empty()) {
      backward.back().m = table.shape.front() / (divided ? tensor_ranks() : 1);
      backward.back().n = table.shape.back();
    }
  }
  const bool trains = !backward.empty();
  forward(op, rows_ * kIndexBytes, std::move(backward), trains);
}

void WorkloadBuilder::norm(std::string_view name, std::string_view backward, const Norm& shape) {
  const bool trains =
      (shape.weights > 0 && !is_frozen("weight")) || (shape.weights > 1 && !is_frozen("bias"));
  if (trains && divided_ != Divided::kNothing) {
    sum_over_tensor();
  }
  if (compiles()) {
    return shape.groups > 1 ? compiled_head_norm(shape) : compiled_norm(name, shape);
  }
  const bool titan =
      is_torchtitan(program_) && program_ != Program::kTorchtitan2024 && shape.statistics == 1;
  Operator op = make(OperatorKind::kNorm, titan ? "aten::_fused_rms_norm" : name);
  if (shape.statistics == 1 && !titan && !fuses()) {
    unfused(shape.offset ? unfused_offset_rms_norm()
            : shape.wide || program_ == Program::kTorchtitan2024
                ? unfused_wide_rms_norm()  // ATen's rms_norm of before 2.9 has the same operators
                : unfused_rms_norm(),
            OperatorKind::kNorm, shape.features, shape.groups, shape.sums_input_grad, trains);
    return;
  }
  const int64_t rows = rows_ * shape.groups;
  const Bytes values = rows * shape.features * size_of(op.dtype);
  const Bytes parameters = shape.weights * shape.features * size_of(op.dtype);
  const Bytes kept = rows * shape.statistics * size_of(DType::kF32);
  op.flops = 4 * rows * shape.features;
  op.read = values + parameters;
  op.written = values + kept;
  op.saved = values + kept;
  Operator grad = make(OperatorKind::kNorm, titan ? "aten::_fused_rms_norm_backward" : backward);
  grad.flops = 8 * rows * shape.features;
  grad.read = 2 * values + kept + parameters;
  grad.written = values + parameters;
  std::vector<Operator> backward_operators{grad};
  if (shape.sums_input_grad && requires_grad_) {
    backward_operators.push_back(gradient_sum(shape.features));
  }
  forward(op, values, std::move(backward_operators), trains);
}

void WorkloadBuilder::elementwise(std::string_view name,
                                  std::string_view backward,
                                  const Elementwise& shape) {
  Operator op = make(OperatorKind::kElementwise, name);
  const Bytes element = size_of(op.dtype);
  op.flops = rows_ * shape.flops;
  op.read = rows_ * shape.read * element;
  op.written = rows_ * shape.written * element;
  op.saved = rows_ * shape.saved * element;
  end_norm();
  compiled_result(op.written);
  if (backward.empty()) {
    forward(op, op.read, {});
    return;
  }
  Operator grad = make(OperatorKind::kElementwise, backward);
  grad.flops = rows_ * shape.backward_flops;
  grad.read = rows_ * shape.backward_read * element;
  grad.written = rows_ * shape.backward_written * element;
  forward(op, op.read, {grad});
}

void WorkloadBuilder::add(int64_t features) {
  if (compiles()) {
    return compiled_add(features);
  }
  elementwise("aten::add", "", {.read = 2 * features, .written = features, .flops = features});
}

// Saves its input for backward, except ReLU, which saves its result.
void WorkloadBuilder::activation(std::string_view name, int64_t features) {
  if (!is_engine() && !compiles() && name == "gelu_new") {
    unfused(unfused_gelu(), OperatorKind::kElementwise, features);
    return;
  }
  const Elementwise shape{.read = features,
                          .written = features,
                          .saved = features,
                          .flops = 8 * features,
                          .backward_read = 2 * features,
                          .backward_written = features,
                          .backward_flops = 10 * features};
  if (name == "relu") {
    elementwise("aten::relu", "aten::threshold_backward", shape);
  } else if (name == "silu") {
    elementwise("aten::silu", "aten::silu_backward", shape);
  } else {
    elementwise("aten::gelu", "aten::gelu_backward", shape);
  }
}

void WorkloadBuilder::silu_multiply(int64_t features) {
  if (!fuses()) {
    unfused(cuts() ? unfused_recomputed_silu_multiply() : unfused_silu_multiply(),
            OperatorKind::kElementwise, features);
    return;
  }
  elementwise("shardlens::silu_multiply", "shardlens::silu_multiply_backward",
              {.read = 2 * features,
               .written = features,
               .saved = 2 * features,
               .flops = 9 * features,
               .backward_read = 3 * features,
               .backward_written = 2 * features,
               .backward_flops = 14 * features});
}

void WorkloadBuilder::rotary(int64_t features, bool complex) {
  if (compiles() && !complex) {
    return compiled_rotary(features);
  }
  if (!fuses() || complex) {
    const DType dtype = plan_.param_dtype(unit());
    unfused(complex                              ? unfused_complex_rotary(dtype)
            : program_ == Program::kTorchtitan03 ? unfused_wide_rotary(dtype)
            : is_engine()                        ? unfused_rotary_of_engine()
                                                 : unfused_rotary(),
            OperatorKind::kElementwise, features);
    return;
  }
  elementwise("shardlens::rotary", "shardlens::rotary_backward",
              {.read = features,
               .written = features,
               .flops = 3 * features,
               .backward_read = features,
               .backward_written = features,
               .backward_flops = 3 * features});
}

// As torchtitan converts layers: those of blocks except routers, so that the head, whose name its
// filter has, stays as it is; and of these, as torchao does, those whose sizes its kernels take.
void WorkloadBuilder::cast_products(const Linear& shape,
                                    Operator& op,
                                    std::vector<Operator>& backward) {
  const std::optional<MatmulDType> dtype = out_.software.matmul_dtype;
  if (!dtype || open_blocks_ == 0 || open_tail_ > 0 || shape.routes ||
      size_of(op.dtype) != size_of(DType::kBF16)) {
    return;
  }
  const bool gathered = plan_.units[unit()].mixed_precision.gathers_float8;
  const ProductCasts casts = product_casts(*dtype, compiles(), gathered);
  if (shape.in % casts.divisor != 0 || shape.out % casts.divisor != 0) {
    return;
  }
  const auto sized = [&](Bytes numbers, double bytes) {
    return std::llround(static_cast<double>(numbers) * bytes);
  };
  const auto cast = [&](const CastKernel& kernel) {
    Operator out = make(OperatorKind::kElementwise, kernel.name);
    const int64_t numbers = kernel.of == CastOf::kInput    ? rows_ * shape.in
                            : kernel.of == CastOf::kWeight ? shape.in * shape.out
                                                           : rows_ * shape.out;
    out.flops = numbers;
    // All as read: what it writes lives as the product's scratch, not as what is handed on.
    out.read = sized(numbers, (kernel.read + kernel.written) * kernel.pace);
    return out;
  };
  // Compiled code casts an input of several products once.
  const bool shared = compiles() && shares_input() && !shape.keeps_input;
  for (const CastKernel& kernel : casts.forward) {
    if (!shared || kernel.of != CastOf::kInput) {
      Operator out = cast(kernel);
      const Bytes input = out.read;
      forward(std::move(out), input, {});
    }
  }
  const auto convert = [&](Operator& product) {
    product.matmul_dtype = dtype;
    product.read = sized(product.m * product.k + product.k * product.n, casts.bytes);
    product.scratch += product.read;
  };
  convert(op);
  if (gathered) {  // the weight's 8 bits are the unsharded parameter
    op.scratch -= sized(shape.in * shape.out, casts.bytes);
  }
  if (casts.saves_casts && op.saved > 0) {
    op.saved = sized(rows_ * shape.in + shape.in * shape.out, casts.bytes);
  }
  for (Operator& each : backward) {
    if (each.kind == OperatorKind::kGemm) {
      convert(each);
    }
  }
  std::vector<Operator> before;
  for (const CastKernel& kernel : casts.backward) {
    if (!backward.empty() && (!shared || kernel.of != CastOf::kInput)) {
      before.push_back(cast(kernel));
      before.back().takes = kTakesGradient;
    }
  }
  backward.insert(backward.begin(), before.begin(), before.end());
}

int64_t tokens_of(const StepSettings& settings) {
  require_valid(settings, "");
  if (!settings.seq) {
    throw InputError("", "seq is missing: the model takes tokens; expected the number per sample");
  }
  return *settings.seq;
}

}  // namespace shardlens::plan
