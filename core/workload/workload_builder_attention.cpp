#include <algorithm>
#include <utility>

#include "core/workload/workload_builder.h"

namespace shardlens::plan {
namespace {

constexpr int64_t kMultiplyAdd = 2;

}  // namespace

// Sets what the engine's capped attention (core/models/attention_ops.cpp) allocates while it runs,
// on a GPU: copies of its inputs by head, unless they are views; and matrices of scores. Forward
// has the bent ones, the capped ones and the weights, in fp32; backward also the gradient of the
// weights and what tanh's derivative is made of.
void WorkloadBuilder::capped_scratch(const Attention& shape,
                                     Operator& op,
                                     Operator& backward) const {
  const Bytes element = size_of(op.dtype), wide = size_of(DType::kF32);
  const Bytes converted = op.dtype == DType::kF32 ? 0 : wide + element;
  const int64_t value_dim = shape.value_dim > 0 ? shape.value_dim : shape.head_dim;
  const bool one = out_.batch == 1;
  const bool group = shape.heads > shape.kv_heads;
  const Bytes queries = one && !group ? 0 : rows_ * shape.heads * shape.head_dim * element;
  const Bytes keys = one ? 0 : rows_ * shape.kv_heads * shape.head_dim * element;
  const Bytes values = one ? 0 : rows_ * shape.kv_heads * value_dim * element;
  const Bytes outputs = rows_ * shape.heads * value_dim * element;
  const Bytes scores = op.batch * op.m * op.n;
  // The output is allocated after the matrices, but counted with what the operator saves.
  op.scratch = std::max<Bytes>(0, queries + keys + scores * (2 * element + wide) - outputs);
  backward.scratch = queries + keys + values + (one && !group ? 0 : outputs) +
                     rows_ * shape.kv_heads * value_dim * element +  // gradient of the values
                     rows_ * shape.heads * wide +                    // sums of rows
                     scores * (4 * wide + element + converted);
}

void WorkloadBuilder::attention(const Attention& given) {
  unkept_input_ = false;
  if (plan_.mesh.size(mesh::kContext) > 1) {  // compiled blocks call it, too
    const int64_t value_dim = given.value_dim > 0 ? given.value_dim : given.head_dim;
    context_attention({given.heads, given.kv_heads, given.head_dim, value_dim});
    end_norm();
    return compiled_result(rows_ * given.heads * value_dim * size_of(plan_.param_dtype(unit())));
  }
  const bool sinks = is_torchtitan(program_) && given.eager == Scores::kSinks;
  if (!is_engine() && !sinks && !given.flash && given.eager != Scores::kFused) {
    eager_attention(given);
    return;
  }
  Attention shape = given;
  // torchtitan's default for gpt_oss and for heads of two sizes, which FlashAttention does not
  // take, nor cuDNN before Blackwell. The kernel that scaled_dot_product_attention has left for
  // these is the memory-efficient one. Source: torchtitan's pull request 1610.
  const int64_t value_dim = shape.value_dim > 0 ? shape.value_dim : shape.head_dim;
  const bool unequal = is_torchtitan(program_) && value_dim != shape.head_dim;
  const bool efficient = unequal && shape.sdpa && !sinks;
  const bool flex = sinks || (unequal && !efficient);
  const bool masked =
      !is_engine() && !flex && !shape.flash && shape.window > 0 && shape.window < out_.seq;
  if (masked) {
    masked_attention(shape);
  }
  // The engine computes capped scores whole, without the kernel that skips later tokens.
  const bool capped = is_engine() && shape.eager == Scores::kCapped;
  if (capped) {
    shape.causal = false;
    shape.window = 0;
  }
  Operator op = make(OperatorKind::kAttention, capped      ? "shardlens::capped_attention"
                                               : flex      ? kFlexAttention
                                               : efficient ? kEfficientAttention
                                                           : "aten::scaled_dot_product_attention");
  const Bytes element = size_of(op.dtype);
  op.batch = out_.batch * shape.heads;
  op.m = op.n = out_.seq;
  op.k = shape.head_dim;
  op.causal = shape.causal;
  if (shape.window > 0 && shape.window < op.m) {
    op.n = shape.window * (2 * op.m - shape.window) / op.m;
  }
  // Products of the scores with keys or queries, and with values.
  const int64_t of_keys = kMultiplyAdd * op.batch * op.m * op.n * op.k;
  const int64_t of_values = kMultiplyAdd * op.batch * op.m * op.n * value_dim;
  const Bytes queries = rows_ * shape.heads * shape.head_dim * element;
  const Bytes keys_and_values = rows_ * shape.kv_heads * (shape.head_dim + value_dim) * element;
  const Bytes outputs = rows_ * shape.heads * value_dim * element;
  const Bytes log_sum = capped ? 0 : rows_ * shape.heads * size_of(DType::kF32);
  op.flops = of_keys + of_values;
  op.read = queries + keys_and_values + (masked ? rows_ * out_.seq * element : 0);
  op.written = outputs + log_sum;
  op.saved = op.read + op.written;  // includes the output, so the output projection saves no input
  if (!is_engine()) {
    op.saved += rows_ * shape.heads * shape.beside_values * element;
  }
  Operator grad = op;
  grad.name += "_backward";
  // Recomputed scores; gradients of scores, values, queries and keys.
  grad.flops = 3 * of_keys + 2 * of_values;
  grad.read = op.read + op.written + outputs;
  grad.written = queries + keys_and_values;
  grad.saved = 0;
  if (capped) {
    capped_scratch(shape, op, grad);
  }
  forward(op, op.read, {grad});
  end_norm();
  compiled_result(outputs);
  if (sinks) {
    scale_by_sinks(shape, value_dim);
  }
}

// Multiplies the result of each head, which attention has saved, by sigmoid(log-sum of the row -
// the head's number), in fp32 up to the product. The gradient that attention takes comes last.
// Source  models/gpt_oss/model.py of torchtitan at 58b0344 (May 2026); model/model.py of 0.2.2.
void WorkloadBuilder::scale_by_sinks(const Attention& shape, int64_t value_dim) {
  const int64_t features = shape.heads * value_dim;
  const auto row = static_cast<double>(shape.heads);
  const bool trains = !is_frozen("sinks");
  if (compiles()) {  // one kernel in each pass, and a small one for the gradient of the sinks
    const Piece scale[] = {
        {.name = "triton_poi_fused_mul_sigmoid_sub", .read = 1, .written = 1, .read_row = row}};
    const Piece unscale[] = {
        {.name = "triton_red_fused_neg_sum", .read_row = row},
        {.name = "triton_per_fused_mul_sigmoid_backward_sum",
         .read = 2,
         .written = 1,
         .read_row = row,
         .written_row = row,
         .takes = kTakesGradient},
    };
    unfused({scale, std::span(unscale).subspan(trains ? 0 : 1)}, OperatorKind::kElementwise,
            features, 1, false, trains);
    return set_result(features);
  }
  const Piece scale[] = {
      {.name = "aten::sub", .read_row = row, .written_row = row},
      {.name = "aten::sigmoid", .read_row = row, .written_row = row},
      {.name = "aten::_to_copy", .read_row = row, .written_row = row / 2},
      {.name = "aten::mul", .read = 1, .written = 1, .read_row = row / 2},
  };
  const Piece unscale[] = {
      {.name = "aten::mul", .read = 2, .written = 1, .takes = kTakesGradient},
      {.name = "aten::sum", .read = 1, .written_row = row / 2},
      {.name = "aten::_to_copy", .read_row = row / 2, .written_row = row},
      {.name = "aten::sigmoid_backward", .read_row = 2 * row, .written_row = row},
      {.name = "aten::neg", .read_row = row, .written_row = row},
      {.name = "aten::sum", .read_row = row},
      {.name = "aten::mul", .read = 1, .written = 1, .read_row = row / 2, .takes = kTakesGradient},
  };
  unfused({scale, unscale, 0, 0, 1.5 * row}, OperatorKind::kElementwise, features, 1, false,
          trains);
}

// A kernel with a mask takes as many heads of keys and values as of queries, and the mask as
// numbers to add to the scores, which are made from booleans in every layer.
void WorkloadBuilder::masked_attention(Attention& shape) {
  const int64_t value_dim = shape.value_dim > 0 ? shape.value_dim : shape.head_dim;
  for (const int64_t dim : {shape.head_dim, value_dim}) {
    if (shape.kv_heads < shape.heads) {
      elementwise("aten::clone", "aten::sum",
                  {.read = shape.kv_heads * dim,
                   .written = shape.heads * dim,
                   .backward_read = shape.heads * dim,
                   .backward_written = shape.kv_heads * dim});
    }
  }
  shape.kv_heads = shape.heads;
  elementwise("aten::masked_fill", "", {.read = 2 * out_.seq, .written = 2 * out_.seq});
}

// The gradients of both matrices, of the second one first.
void WorkloadBuilder::batched_product(int64_t batch, int64_t m, int64_t n, int64_t k, Bytes kept) {
  const auto product = [&](int64_t rows, int64_t columns, int64_t inner) {
    Operator op = make(OperatorKind::kGemm, "aten::bmm");
    const Bytes element = size_of(op.dtype);
    op.batch = batch;
    op.m = rows;
    op.n = columns;
    op.k = inner;
    op.flops = 2 * batch * rows * columns * inner;
    op.read = batch * (rows + columns) * inner * element;
    op.written = batch * rows * columns * element;
    op.takes = kTakesGradient;
    return op;
  };
  Operator op = product(m, n, k);
  op.takes = 0;
  op.saved = kept;
  const Bytes input = op.read;
  forward(std::move(op), input, {product(k, n, m), product(m, k, n)});
}

// Queries, keys and values are copied, keys and values to all heads. In fp32 the softmax's own
// result is the second product's input.
void WorkloadBuilder::eager_attention(const Attention& shape) {
  const int64_t value_dim = shape.value_dim > 0 ? shape.value_dim : shape.head_dim;
  const auto copy = [&](int64_t from, int64_t to) {
    elementwise("aten::clone", from < to ? "aten::sum" : "",
                {.read = from, .written = to, .backward_read = to, .backward_written = from});
  };
  const bool spreads = shape.kv_heads < shape.heads;
  if (spreads || shape.one_product) {
    copy(shape.kv_heads * shape.head_dim, shape.heads * shape.head_dim);
    copy(shape.kv_heads * value_dim, shape.heads * value_dim);
  }
  copy(shape.heads * shape.head_dim, shape.heads * shape.head_dim);
  const DType dtype = plan_.param_dtype(unit());
  const Bytes element = size_of(dtype);
  const int64_t seq = out_.seq, heads = shape.heads;
  const Bytes queries_and_keys = 2 * rows_ * heads * shape.head_dim * element;
  const Bytes values = rows_ * heads * value_dim * element;
  const bool copied = dtype != DType::kF32 && shape.eager != Scores::kSinks;
  const Bytes probabilities = copied ? rows_ * heads * seq * element : 0;
  batched_product(out_.batch * heads, seq, seq, shape.head_dim, queries_and_keys);
  unfused(unfused_scores(shape.eager), OperatorKind::kElementwise, heads * seq);
  batched_product(out_.batch * heads, seq, value_dim, seq, values + probabilities);
  copy(heads * value_dim, heads * value_dim);
}

}  // namespace shardlens::plan
