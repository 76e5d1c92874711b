#include "core/plan/unfused.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace shardlens::plan {
namespace {

template <size_t A, size_t B>
constexpr std::array<Piece, A + B> joined(const std::array<Piece, A>& a,
                                          const std::array<Piece, B>& b) {
  std::array<Piece, A + B> out;
  std::copy(a.begin(), a.end(), out.begin());
  std::copy(b.begin(), b.end(), out.begin() + A);
  return out;
}

// x · rsqrt(mean(x²) + ε) in fp32, which all RMSNorms have in common.
constexpr std::array kNormalizedForward = std::to_array<Piece>({
    {.name = "aten::_to_copy", .read = 1, .written_f32 = 1},
    {.name = "aten::pow", .read_f32 = 1, .written_f32 = 1},
    {.name = "aten::mean", .read_f32 = 1, .written_row = 1},
    {.name = "aten::add", .read_row = 1, .written_row = 1},
    {.name = "aten::rsqrt", .read_row = 1, .written_row = 1},
    {.name = "aten::mul", .read_f32 = 1, .written_f32 = 1, .read_row = 1},
});
constexpr std::array kNormalizedBackward = std::to_array<Piece>({
    {.name = "aten::mul", .read_f32 = 2, .written_f32 = 1},
    {.name = "aten::mul", .read_f32 = 1, .written_f32 = 1, .read_row = 1},
    {.name = "aten::sum", .read_f32 = 1, .written_row = 1},
    {.name = "aten::pow", .read_row = 1, .written_row = 1},
    {.name = "aten::mul", .read_row = 1, .written_row = 1},
    {.name = "aten::mul", .read_row = 2, .written_row = 1},
    {.name = "aten::div", .written_f32 = 1, .read_row = 1},
    {.name = "aten::pow", .read_f32 = 1, .written_f32 = 1},
    {.name = "aten::mul", .read_f32 = 1, .written_f32 = 1},
    {.name = "aten::mul", .read_f32 = 2, .written_f32 = 1},
    {.name = "aten::add_", .read_f32 = 2, .written_f32 = 1},
    {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
});

// y = w · normalized(x), with the product in the parameters' dtype.
constexpr std::array kNormForward =
    joined(kNormalizedForward,
           std::to_array<Piece>({
               {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
               {.name = "aten::mul", .read = 1, .written = 1},
           }));
constexpr std::array kNormBackward =
    joined(std::to_array<Piece>({
               {.name = "aten::mul", .read = 1, .written = 1},
               {.name = "aten::mul", .read = 2, .written = 1},
               {.name = "aten::sum", .read = 1},
               {.name = "aten::_to_copy", .read = 1, .written_f32 = 1},
           }),
           kNormalizedBackward);

// The same with 1 + w in place of w, all in fp32.
constexpr std::array kOffsetNormForward =
    joined(kNormalizedForward,
           std::to_array<Piece>({
               {.name = "aten::_to_copy", .read_row = 1, .written_row = 1},  // the weights
               {.name = "aten::add", .read_row = 1, .written_row = 1},
               {.name = "aten::mul", .read_f32 = 1, .written_f32 = 1},
               {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
           }));
constexpr std::array kOffsetNormBackward =
    joined(std::to_array<Piece>({
               {.name = "aten::_to_copy", .read = 1, .written_f32 = 1},
               {.name = "aten::mul", .read_f32 = 2, .written_f32 = 1},
               {.name = "aten::mul", .read_f32 = 1, .written_f32 = 1},
               {.name = "aten::sum", .read_f32 = 1},
               {.name = "aten::_to_copy", .read_row = 1, .written_row = 1},
           }),
           kNormalizedBackward);

// x · cos + cat(-x₂, x₁) · sin
constexpr Piece kRotaryForward[] = {
    {.name = "aten::mul", .read = 1, .written = 1},
    {.name = "aten::neg", .read = 0.5, .written = 0.5},
    {.name = "aten::cat", .read = 1, .written = 1},
    {.name = "aten::mul", .read = 1, .written = 1},
    {.name = "aten::add", .read = 2, .written = 1},
};
constexpr Piece kRotaryBackward[] = {
    {.name = "aten::mul", .read = 1, .written = 1},
    {.name = "aten::neg", .read = 0.5, .written = 0.5},
    {.name = "aten::slice_backward", .read = 0.5, .written = 1},
    {.name = "aten::slice_backward", .read = 0.5, .written = 1},
    {.name = "aten::add_", .read = 2, .written = 1},
    {.name = "aten::mul", .read = 1, .written = 1},
    {.name = "aten::add_", .read = 2, .written = 1},
    {.name = "aten::clone", .read = 1, .written = 1},
};

constexpr Piece kGateForward[] = {
    {.name = "aten::silu", .read = 1, .written = 1},
    {.name = "aten::mul", .read = 2, .written = 1},
};
constexpr Piece kGateBackward[] = {
    {.name = "aten::mul", .read = 2, .written = 1},
    {.name = "aten::mul", .read = 2, .written = 1},
    {.name = "aten::silu_backward", .read = 2, .written = 1},
};

// x/2 · (1 + tanh(c · (x + 0.044715 x³)))
constexpr Piece kGeluForward[] = {
    {.name = "aten::mul", .read = 1, .written = 1}, {.name = "aten::pow", .read = 1, .written = 1},
    {.name = "aten::mul", .read = 1, .written = 1}, {.name = "aten::add", .read = 2, .written = 1},
    {.name = "aten::mul", .read = 1, .written = 1}, {.name = "aten::tanh", .read = 1, .written = 1},
    {.name = "aten::add", .read = 1, .written = 1}, {.name = "aten::mul", .read = 2, .written = 1},
};
constexpr Piece kGeluBackward[] = {
    {.name = "aten::mul", .read = 2, .written = 1},
    {.name = "aten::mul", .read = 2, .written = 1},
    {.name = "aten::tanh_backward", .read = 2, .written = 1},
    {.name = "aten::mul", .read = 1, .written = 1},
    {.name = "aten::mul", .read = 1, .written = 1},
    {.name = "aten::pow", .read = 1, .written = 1},
    {.name = "aten::mul", .read = 1, .written = 1},
    {.name = "aten::mul", .read = 2, .written = 1},
    {.name = "aten::add_", .read = 2, .written = 1},
    {.name = "aten::mul", .read = 1, .written = 1},
    {.name = "aten::add_", .read = 2, .written = 1},
};

constexpr Piece kLossForward[] = {
    {.name = "aten::_to_copy", .read = 1, .written_f32 = 1},
    {.name = "aten::nll_loss_forward", .read_row = 2},  // of the result of the next one
    {.name = "aten::_log_softmax", .read_f32 = 1, .written_f32 = 1},
};
constexpr Piece kLossBackward[] = {
    {.name = "aten::nll_loss_backward", .written_f32 = 1, .read_row = 2},
    {.name = "aten::_log_softmax_backward_data", .read_f32 = 2, .written_f32 = 1},
    {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
};

constexpr Unfused kNorm{kNormForward, kNormBackward, 1, 1, 1};
constexpr Unfused kOffsetNorm{kOffsetNormForward, kOffsetNormBackward, 0, 2, 1};
constexpr Unfused kRotary{kRotaryForward, kRotaryBackward};
constexpr Unfused kGate{kGateForward, kGateBackward, 3};
constexpr Unfused kGelu{kGeluForward, kGeluBackward, 4};
constexpr Unfused kLoss{kLossForward, kLossBackward, 0, 1, 2};

}  // namespace

const Unfused& unfused_rms_norm() {
  return kNorm;
}
const Unfused& unfused_offset_rms_norm() {
  return kOffsetNorm;
}
const Unfused& unfused_rotary() {
  return kRotary;
}
const Unfused& unfused_silu_multiply() {
  return kGate;
}
const Unfused& unfused_gelu() {
  return kGelu;
}
const Unfused& unfused_loss() {
  return kLoss;
}

}  // namespace shardlens::plan
