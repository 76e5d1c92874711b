#include <utility>
#include <vector>

#include "core/workload/pass_builder.h"

namespace shardlens::plan {
namespace {

// In fp32 a conversion to fp32 is the tensor itself.
bool is_idle(const Piece& piece, DType dtype) {
  return dtype == DType::kF32 && piece.name == "aten::_to_copy" &&
         piece.read + piece.read_f32 == piece.written + piece.written_f32;
}

// What the pieces of a part's backward take, if some of them are left out.
class Sources {
 public:
  // The next piece takes `takes`. Returns this with distances among the pieces that are not left
  // out.
  uint32_t add(uint32_t takes, bool left_out) {
    uint32_t from = takes & kTakesGradient;  // bit i + 1: the i-th piece that is not left out
    for (uint32_t distance = 1; distance <= pieces_.size() && distance < 31; ++distance) {
      if ((takes & takes_before(distance)) != 0) {
        from |= pieces_[pieces_.size() - distance];
      }
    }
    uint32_t out = from & kTakesGradient;
    for (uint32_t i = 0; i < kept_; ++i) {
      out |= (from >> (i + 1) & 1) != 0 ? takes_before(kept_ - i) : 0;
    }
    pieces_.push_back(left_out ? from : uint32_t{1} << (kept_ + 1));
    kept_ += left_out ? 0 : 1;
    return out != 0 ? out : kTakesSaved;
  }

 private:
  std::vector<uint32_t> pieces_;  // what their result is made by, as `from`
  uint32_t kept_ = 0;
};

}  // namespace

void PassBuilder::unfused(const Unfused& part,
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
    op.scratch = bytes(op, each.scratch, 0, 0);
    // AOTAutograd has no operators in place: aten.index_put copies what it writes to first.
    if (out_.program == Program::kSimpleFsdp && !compiles() &&
        each.name.starts_with("aten::index_put")) {
      op.read += 2 * op.written;
    }
    if (each.column > 0) {
      op.kind = OperatorKind::kGemm;
      op.dtype = DType::kF32;
      op.m = each.column;
      op.n = each.row;
      op.k = 1;
      op.batch = rows_ * groups * features / (op.m * op.n);
      op.flops = 2 * op.batch * op.m * op.n;
    }
    return op;
  };
  for (const Piece& each : part.forward.first(part.forward.size() - 1)) {
    if (!is_idle(each, make(OperatorKind::kElementwise, each.name).dtype)) {
      Operator op = piece(each);
      const Bytes input = op.read;
      forward(std::move(op), input, {});
    }
  }
  Operator last = piece(part.forward.back());
  last.kind = kind;
  last.saved = bytes(last, part.saved, part.saved_f32, part.saved_row);
  std::vector<Operator> backward;
  Sources sources;
  for (size_t i = 0; i < part.backward.size(); ++i) {
    const Piece& each = part.backward[i];
    const bool idle = is_idle(each, last.dtype);
    const uint32_t takes = sources.add(i == 0 ? kTakesGradient : each.takes, idle);
    if (!idle) {
      backward.push_back(piece(each));
      backward.back().takes = takes;
      backward.back().frees = bytes(last, each.frees, 0, 0);
    }
  }
  if (sums_input_grad && requires_grad_) {
    backward.push_back(gradient_sum(features * groups));
  }
  const Bytes input = last.read;
  forward(std::move(last), input, std::move(backward), trains);
}

}  // namespace shardlens::plan
