#include <utility>
#include <vector>

#include "core/plan/workload_builder.h"

namespace shardlens::plan {

void WorkloadBuilder::unfused(const Unfused& part,
                              OperatorKind kind,
                              int64_t features,
                              int64_t groups,
                              bool sums_input_grad,
                              bool trains) {
  const auto rows = static_cast<double>(rows_ * groups);
  const auto bytes = [&](const Operator& op, double values, double f32, double row) {
    const double of_row =
        static_cast<double>(features) * (values * static_cast<double>(size_of(op.dtype)) +
                                         f32 * static_cast<double>(size_of(DType::kF32))) +
        row * static_cast<double>(size_of(DType::kF32));
    return static_cast<Bytes>(rows * of_row);
  };
  const auto piece = [&](const Piece& each) {
    Operator op = make(OperatorKind::kElementwise, each.name);
    op.read = bytes(op, each.read, each.read_f32, each.read_row);
    op.written = bytes(op, each.written, each.written_f32, each.written_row);
    return op;
  };
  for (const Piece& each : part.forward.first(part.forward.size() - 1)) {
    Operator op = piece(each);
    const Bytes input = op.read;
    forward(std::move(op), input, {});
  }
  Operator last = piece(part.forward.back());
  last.kind = kind;
  last.saved = bytes(last, part.saved, part.saved_f32, part.saved_row);
  std::vector<Operator> backward;
  for (const Piece& each : part.backward) {
    backward.push_back(piece(each));
  }
  if (sums_input_grad && requires_grad_) {
    backward.push_back(gradient_sum(features * groups));
  }
  const Bytes input = last.read;
  forward(std::move(last), input, std::move(backward), trains);
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

}  // namespace shardlens::plan
