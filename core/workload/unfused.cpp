#include "core/workload/unfused.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>

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
// `distance` to the operator that makes the gradient of the normalized values.
constexpr auto normalized_backward(uint32_t distance) {
  return std::to_array<Piece>({
      {.name = "aten::mul", .read_f32 = 2, .written_f32 = 1, .takes = takes_before(distance)},
      {.name = "aten::mul",
       .read_f32 = 1,
       .written_f32 = 1,
       .read_row = 1,
       .takes = takes_before(distance + 1)},
      {.name = "aten::sum", .read_f32 = 1, .written_row = 1, .takes = takes_before(2)},
      {.name = "aten::pow", .read_row = 1, .written_row = 1, .takes = kTakesSaved},
      {.name = "aten::mul", .read_row = 1, .written_row = 1},
      {.name = "aten::mul",
       .read_row = 2,
       .written_row = 1,
       .takes = takes_before(1) | takes_before(3)},
      {.name = "aten::div", .written_f32 = 1, .read_row = 1},
      {.name = "aten::pow", .read_f32 = 1, .written_f32 = 1, .takes = kTakesSaved},
      {.name = "aten::mul", .read_f32 = 1, .written_f32 = 1},
      {.name = "aten::mul",
       .read_f32 = 2,
       .written_f32 = 1,
       .takes = takes_before(1) | takes_before(3)},
      {.name = "aten::add_",
       .read_f32 = 2,
       .written_f32 = 1,
       .takes = takes_before(1) | takes_before(9)},
      {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
  });
}

// y = w · normalized(x), with the product in the parameters' dtype.
constexpr std::array kNormForward =
    joined(kNormalizedForward,
           std::to_array<Piece>({
               {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
               {.name = "aten::mul", .read = 1, .written = 1},
           }));
constexpr std::array kNormBackward =
    joined(std::to_array<Piece>({
               {.name = "aten::mul", .read = 1, .written = 1, .takes = kTakesGradient},
               {.name = "aten::mul", .read = 2, .written = 1, .takes = kTakesGradient, .frees = 1},
               {.name = "aten::sum", .read = 1},
               {.name = "aten::_to_copy", .read = 1, .written_f32 = 1, .takes = takes_before(3)},
           }),
           normalized_backward(1));

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
               {.name = "aten::mul", .read_f32 = 1, .written_f32 = 1, .takes = takes_before(2)},
               {.name = "aten::sum", .read_f32 = 1, .takes = takes_before(2)},
               {.name = "aten::_to_copy", .read_row = 1, .written_row = 1, .takes = kTakesSaved},
           }),
           normalized_backward(3));

// The same with w, where the product is in fp32.
constexpr std::array kWideNormForward =
    joined(kNormalizedForward,
           std::to_array<Piece>({
               {.name = "aten::mul", .read_f32 = 1, .written_f32 = 1},
               {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
           }));
constexpr std::array kWideNormBackward =
    joined(std::to_array<Piece>({
               {.name = "aten::_to_copy", .read = 1, .written_f32 = 1},
               {.name = "aten::mul", .read_f32 = 1, .written_f32 = 1},
               {.name = "aten::mul", .read_f32 = 2, .written_f32 = 1, .takes = takes_before(2)},
               {.name = "aten::sum", .read_f32 = 1},
               {.name = "aten::_to_copy", .read_row = 1, .written_row = 1, .takes = kTakesSaved},
           }),
           normalized_backward(4));

// x · cos + cat(-x₂, x₁) · sin
constexpr Piece kRotaryForward[] = {
    {.name = "aten::mul", .read = 1, .written = 1},
    {.name = "aten::neg", .read = 0.5, .written = 0.5},
    {.name = "aten::cat", .read = 1, .written = 1},
    {.name = "aten::mul", .read = 1, .written = 1},
    {.name = "aten::add", .read = 2, .written = 1},
};
constexpr Piece kRotaryBackward[] = {
    {.name = "aten::mul", .read = 1, .written = 1, .takes = kTakesGradient},
    {.name = "aten::neg", .read = 0.5, .written = 0.5},
    {.name = "aten::slice_backward", .read = 0.5, .written = 1},
    {.name = "aten::slice_backward", .read = 0.5, .written = 1, .takes = takes_before(3)},
    {.name = "aten::add_", .read = 2, .written = 1, .takes = takes_before(1) | takes_before(2)},
    {.name = "aten::mul", .read = 1, .written = 1, .takes = kTakesGradient},
    {.name = "aten::add_", .read = 2, .written = 1, .takes = takes_before(1) | takes_before(2)},
    {.name = "aten::clone", .read = 1, .written = 1},
};

// The same in fp32. Queries and keys are not transposed.
constexpr Piece kWideRotaryForward[] = {
    {.name = "aten::_to_copy", .read = 1, .written_f32 = 1},
    {.name = "aten::mul", .read_f32 = 1, .written_f32 = 1},
    {.name = "aten::neg", .read_f32 = 0.5, .written_f32 = 0.5},
    {.name = "aten::cat", .read_f32 = 1, .written_f32 = 1},
    {.name = "aten::mul", .read_f32 = 1, .written_f32 = 1},
    {.name = "aten::add", .read_f32 = 2, .written_f32 = 1},
    {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
};
constexpr Piece kWideRotaryBackward[] = {
    {.name = "aten::_to_copy", .read = 1, .written_f32 = 1, .takes = kTakesGradient},
    {.name = "aten::mul", .read_f32 = 1, .written_f32 = 1},
    {.name = "aten::neg", .read_f32 = 0.5, .written_f32 = 0.5},
    {.name = "aten::slice_backward", .read_f32 = 0.5, .written_f32 = 1},
    {.name = "aten::slice_backward", .read_f32 = 0.5, .written_f32 = 1, .takes = takes_before(3)},
    {.name = "aten::add_",
     .read_f32 = 2,
     .written_f32 = 1,
     .takes = takes_before(1) | takes_before(2)},
    {.name = "aten::mul", .read_f32 = 1, .written_f32 = 1, .takes = takes_before(6)},
    {.name = "aten::add_",
     .read_f32 = 2,
     .written_f32 = 1,
     .takes = takes_before(1) | takes_before(2)},
    {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
};

// The gradient is multiplied with the conjugate. In fp32 there is only the product.
constexpr Piece kComplexRotaryForward[] = {
    {.name = "aten::_to_copy", .read = 1, .written_f32 = 1},
    {.name = "aten::mul", .read_f32 = 1, .written_f32 = 1},
    {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
};
constexpr Piece kComplexRotaryBackward[] = {
    {.name = "aten::_to_copy", .read = 1, .written_f32 = 1, .takes = kTakesGradient},
    {.name = "aten::mul", .read_f32 = 1, .written_f32 = 1},
    {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
};
constexpr Piece kComplexProduct[] = {
    {.name = "aten::mul", .read_f32 = 1, .written_f32 = 1, .takes = kTakesGradient},
};

constexpr Piece kGateForward[] = {
    {.name = "aten::silu", .read = 1, .written = 1},
    {.name = "aten::mul", .read = 2, .written = 1},
};
constexpr Piece kGateBackward[] = {
    {.name = "aten::mul", .read = 2, .written = 1, .takes = kTakesGradient},
    {.name = "aten::mul", .read = 2, .written = 1, .takes = kTakesGradient, .frees = 2},
    {.name = "aten::silu_backward", .read = 2, .written = 1},
};

constexpr Piece kRecomputedGateBackward[] = {
    {.name = "aten::silu", .read = 1, .written = 1},
    {.name = "aten::mul", .read = 2, .written = 1, .takes = kTakesGradient | takes_before(1)},
    {.name = "aten::mul", .read = 2, .written = 1, .takes = kTakesGradient, .frees = 1},
    {.name = "aten::silu_backward", .read = 2, .written = 1},
};

// (up + 1) · gate · sigmoid(a · gate), both clamped. They are the two halves of one product, or
// every second number of its rows: then a kernel that reads one of them reads both (`reads` 2), and
// the gradient of one is written among zeros that are read again (`slice_reads` 3).
constexpr auto clamped_gate_forward(double reads) {
  return std::to_array<Piece>({
      {.name = "aten::clamp", .read = reads, .written = 1},
      {.name = "aten::clamp", .read = reads, .written = 1},
      {.name = "aten::mul", .read = 1, .written = 1},
      {.name = "aten::sigmoid", .read = 1, .written = 1},
      {.name = "aten::mul", .read = 2, .written = 1},
      {.name = "aten::add", .read = 1, .written = 1},
      {.name = "aten::mul", .read = 2, .written = 1},
  });
}
constexpr auto clamped_gate_backward(double reads, double slice_reads) {
  constexpr uint32_t kBoth = takes_before(1) | takes_before(2);
  constexpr uint32_t kSigmoid = takes_before(2), kFirst = takes_before(1) | takes_before(9);
  constexpr uint32_t kSecond = takes_before(1) | takes_before(6);
  return std::to_array<Piece>({
      {.name = "aten::mul", .read = 2, .written = 1, .takes = kTakesGradient},
      {.name = "aten::mul", .read = 2, .written = 1, .takes = kTakesGradient, .frees = 2},
      {.name = "aten::mul", .read = 2, .written = 1, .takes = takes_before(2)},
      {.name = "aten::mul", .read = 2, .written = 1, .takes = takes_before(3), .frees = 1},
      {.name = "aten::sigmoid_backward", .read = 2, .written = 1, .takes = kSigmoid, .frees = 1},
      {.name = "aten::mul", .read = 1, .written = 1},
      {.name = "aten::add_", .read = 2, .written = 1, .takes = takes_before(1) | takes_before(3)},
      {.name = "aten::ge", .read = reads, .written = 0.5, .takes = kTakesSaved},
      {.name = "aten::le", .read = reads, .written = 0.5, .takes = kTakesSaved},
      {.name = "aten::logical_and_", .read = 1, .written = 0.5, .takes = kBoth},
      {.name = "aten::where", .read = 1.5, .written = 1, .takes = kFirst},
      {.name = "aten::le", .read = reads, .written = 0.5, .takes = kTakesSaved},
      {.name = "aten::where", .read = 1.5, .written = 1, .takes = kSecond},
      {.name = "aten::slice_backward", .read = slice_reads, .written = 2, .takes = takes_before(3)},
      {.name = "aten::slice_backward", .read = slice_reads, .written = 2, .takes = takes_before(2)},
      {.name = "aten::add_", .read = 4, .written = 2, .takes = kBoth},
  });
}
constexpr auto kClampedGateForward = clamped_gate_forward(1);
constexpr auto kClampedGateBackward = clamped_gate_backward(1, 1);
constexpr auto kInterleavedGateForward = clamped_gate_forward(2);
constexpr auto kInterleavedGateBackward = clamped_gate_backward(2, 3);

// x/2 · (1 + tanh(c · (x + 0.044715 x³)))
constexpr Piece kGeluForward[] = {
    {.name = "aten::mul", .read = 1, .written = 1}, {.name = "aten::pow", .read = 1, .written = 1},
    {.name = "aten::mul", .read = 1, .written = 1}, {.name = "aten::add", .read = 2, .written = 1},
    {.name = "aten::mul", .read = 1, .written = 1}, {.name = "aten::tanh", .read = 1, .written = 1},
    {.name = "aten::add", .read = 1, .written = 1}, {.name = "aten::mul", .read = 2, .written = 1},
};
constexpr Piece kGeluBackward[] = {
    {.name = "aten::mul", .read = 2, .written = 1, .takes = kTakesGradient},
    {.name = "aten::mul", .read = 2, .written = 1, .takes = kTakesGradient, .frees = 2},
    {.name = "aten::tanh_backward", .read = 2, .written = 1, .frees = 1},
    {.name = "aten::mul", .read = 1, .written = 1},
    {.name = "aten::mul", .read = 1, .written = 1},
    {.name = "aten::pow", .read = 1, .written = 1, .takes = kTakesSaved},
    {.name = "aten::mul", .read = 1, .written = 1},
    {.name = "aten::mul", .read = 2, .written = 1, .takes = takes_before(1) | takes_before(3)},
    {.name = "aten::add_", .read = 2, .written = 1, .takes = takes_before(1) | takes_before(5)},
    {.name = "aten::mul", .read = 1, .written = 1, .takes = takes_before(9)},
    {.name = "aten::add_", .read = 2, .written = 1, .takes = takes_before(1) | takes_before(2)},
};

constexpr Piece kLossForward[] = {
    {.name = "aten::nll_loss_forward", .read_row = 2},  // of the result of the last one
    {.name = "aten::_to_copy", .read = 1, .written_f32 = 1},
    {.name = "aten::_log_softmax", .read_f32 = 1, .written_f32 = 1},
};
constexpr Piece kLossBackward[] = {
    {.name = "aten::nll_loss_backward", .written_f32 = 1, .read_row = 2},
    {.name = "aten::_log_softmax_backward_data", .read_f32 = 2, .written_f32 = 1},
    {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
};

// aten::cross_entropy_loss runs the two operators of the loss within itself.
constexpr Piece kCrossEntropyForward[] = {
    {.name = "aten::_to_copy", .read = 1, .written_f32 = 1},
    {.name = "aten::cross_entropy_loss", .read_f32 = 1, .written_f32 = 1, .read_row = 2},
};

// Of a part of the vocabulary. Between these parts the ranks reduce a number for each row: the
// largest logit, the sum of exponentials, the logit of the label. Backward multiplies a sum of two
// tensors, one of which it keeps until it ends, and reads the result of forward.
// Source  _log_softmax(), _nll_loss_forward() and _nll_loss_and_log_softmax_backward() in
//         torch/distributed/tensor/parallel/loss.py, torch 2.11.
constexpr Piece kLargestLogit[] = {
    {.name = "aten::_to_copy", .read = 1, .written_f32 = 1},
    {.name = "aten::amax", .read_f32 = 1, .written_row = 1},
};
constexpr Piece kSumOfExponentials[] = {
    {.name = "aten::sub", .read_f32 = 1, .written_f32 = 1},
    {.name = "aten::exp", .read_f32 = 1, .written_f32 = 1},
    {.name = "aten::sum", .read_f32 = 1, .written_row = 1},
};
constexpr Piece kLogitOfLabel[] = {
    {.name = "aten::log", .read_row = 1, .written_row = 1},
    {.name = "aten::gather", .read_row = 3, .written_row = 1},  // of the result of the last one
    {.name = "aten::sub", .read_f32 = 1, .written_f32 = 1},
};
constexpr Piece kParallelLossBackward[] = {
    {.name = "aten::zeros_like", .written_f32 = 1},
    {.name = "aten::index_put_", .read_row = 2, .written_row = 1},
    {.name = "aten::exp", .read_f32 = 1, .written_f32 = 1, .takes = kTakesSaved},
    {.name = "aten::add",
     .read_f32 = 2,
     .written_f32 = 1,
     .takes = takes_before(1) | takes_before(2)},
    {.name = "aten::mul",
     .read_f32 = 1,
     .written_f32 = 1,
     .takes = takes_before(1) | takes_before(3),
     .frees = 2},  // what forward saved: fp32 numbers, where the next one is not idle
    {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
};

// Of the scores between the two products of attention: softmax in fp32.
constexpr std::array kSoftmaxForward = std::to_array<Piece>({
    {.name = "aten::add", .read = 1, .written = 1},  // the mask
    {.name = "aten::_to_copy", .read = 1, .written_f32 = 1},
    {.name = "aten::_softmax", .read_f32 = 1, .written_f32 = 1},
    {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
});
constexpr std::array kSoftmaxBackward = std::to_array<Piece>({
    {.name = "aten::_to_copy", .read = 1, .written_f32 = 1},
    {.name = "aten::_softmax_backward_data", .read_f32 = 2, .written_f32 = 1},
    {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
});
constexpr std::array kScale = std::to_array<Piece>({
    {.name = "aten::mul", .read = 1, .written = 1},
});
// cap · tanh(x / cap), in forward and in backward
constexpr std::array kCapForward = std::to_array<Piece>({
    {.name = "aten::div", .read = 1, .written = 1},
    {.name = "aten::tanh", .read = 1, .written = 1},
    {.name = "aten::mul", .read = 1, .written = 1},
});
constexpr std::array kCapBackward = std::to_array<Piece>({
    {.name = "aten::mul", .read = 1, .written = 1},
    {.name = "aten::tanh_backward", .read = 2, .written = 1},
    {.name = "aten::div", .read = 1, .written = 1},
});
constexpr std::array kScaledForward = joined(kScale, kSoftmaxForward);
constexpr std::array kScaledBackward = joined(kSoftmaxBackward, kScale);
constexpr std::array kCappedForward = joined(kScale, joined(kCapForward, kSoftmaxForward));
constexpr std::array kCappedBackward = joined(kSoftmaxBackward, joined(kCapBackward, kScale));

// With a learned number in addition to each row (gpt_oss). The largest score is subtracted.
constexpr Piece kSinksForward[] = {
    {.name = "aten::mul", .read = 1, .written = 1},
    {.name = "aten::add", .read = 1, .written = 1},
    {.name = "aten::cat", .read = 1, .written = 1},
    {.name = "aten::max", .read = 1},
    {.name = "aten::sub", .read = 1, .written = 1},
    {.name = "aten::_softmax", .read = 1, .written = 1},
};
constexpr Piece kSinksBackward[] = {
    {.name = "aten::slice_backward", .read = 1, .written = 1},
    {.name = "aten::_softmax_backward_data", .read = 2, .written = 1},
    {.name = "aten::neg", .read = 1, .written = 1},
    {.name = "aten::sum", .read = 1},
    {.name = "aten::zeros", .written = 1, .takes = kTakesSaved},
    {.name = "aten::scatter", .read = 1, .written = 1},
    {.name = "aten::add_", .read = 2, .written = 1, .takes = takes_before(1) | takes_before(5)},
    {.name = "aten::mul", .read = 1, .written = 1},
};

// With biases by distance in fp32 (ALiBi), which make the sum fp32, and a mask of booleans.
constexpr Piece kBiasedForward[] = {
    {.name = "aten::mul", .read = 1, .written = 1},
    {.name = "aten::add", .read = 1, .written_f32 = 1},
    {.name = "aten::masked_fill", .read_f32 = 1, .written_f32 = 1},
    {.name = "aten::_softmax", .read_f32 = 1, .written_f32 = 1},
    {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
};
constexpr Piece kBiasedBackward[] = {
    {.name = "aten::_to_copy", .read = 1, .written_f32 = 1},
    {.name = "aten::_softmax_backward_data", .read_f32 = 2, .written_f32 = 1},
    {.name = "aten::masked_fill", .read_f32 = 1, .written_f32 = 1},
    {.name = "aten::_to_copy", .read_f32 = 1, .written = 1},
    {.name = "aten::mul", .read = 1, .written = 1},
};

constexpr Unfused kScaledScores{kScaledForward, kScaledBackward, 0, 1};
constexpr Unfused kCappedScores{kCappedForward, kCappedBackward, 1, 1};
constexpr Unfused kSinkScores{kSinksForward, kSinksBackward, 1};
constexpr Unfused kBiasedScores{kBiasedForward, kBiasedBackward, 0, 1};
constexpr Unfused kCap{kCapForward, kCapBackward, 1};
constexpr Unfused kNorm{kNormForward, kNormBackward, 1, 1, 1};
constexpr Unfused kOffsetNorm{kOffsetNormForward, kOffsetNormBackward, 0, 2, 1};
constexpr Unfused kWideNorm{kWideNormForward, kWideNormBackward, 0, 2, 1};
constexpr Unfused kClampedGate{kClampedGateForward, kClampedGateBackward, 6};
constexpr Unfused kInterleavedGate{kInterleavedGateForward, kInterleavedGateBackward, 6};
constexpr Unfused kRotary{kRotaryForward, kRotaryBackward};
constexpr Unfused kRotaryOfEngine{kRotaryForward,
                                  std::span(kRotaryBackward).first(std::size(kRotaryBackward) - 1)};
constexpr Unfused kWideRotary{kWideRotaryForward, kWideRotaryBackward};
constexpr Unfused kComplexRotary{kComplexRotaryForward, kComplexRotaryBackward};
constexpr Unfused kComplexRotaryF32{kComplexProduct, kComplexProduct};
constexpr Unfused kGate{kGateForward, kGateBackward, 3};
constexpr Unfused kRecomputedGate{kGateForward, kRecomputedGateBackward, 2};
constexpr Unfused kGelu{kGeluForward, kGeluBackward, 4};
constexpr Unfused kLoss{kLossForward, kLossBackward, 0, 1, 2};
constexpr Unfused kCrossEntropy{kCrossEntropyForward, kLossBackward, 0, 1, 2};
constexpr Unfused kParallelLoss[] = {
    {kLargestLogit, {}}, {kSumOfExponentials, {}}, {kLogitOfLabel, kParallelLossBackward, 0, 1, 2}};

}  // namespace

const Unfused& unfused_rms_norm() {
  return kNorm;
}
const Unfused& unfused_offset_rms_norm() {
  return kOffsetNorm;
}
const Unfused& unfused_wide_rms_norm() {
  return kWideNorm;
}
const Unfused& unfused_clamped_gate() {
  return kClampedGate;
}

const Unfused& unfused_interleaved_gate() {
  return kInterleavedGate;
}
const Unfused& unfused_rotary() {
  return kRotary;
}
const Unfused& unfused_rotary_of_engine() {
  return kRotaryOfEngine;
}
const Unfused& unfused_wide_rotary(DType dtype) {
  return dtype == DType::kF32 ? kRotaryOfEngine : kWideRotary;
}
const Unfused& unfused_complex_rotary(DType dtype) {
  return dtype == DType::kF32 ? kComplexRotaryF32 : kComplexRotary;
}
const Unfused& unfused_silu_multiply() {
  return kGate;
}
const Unfused& unfused_recomputed_silu_multiply() {
  return kRecomputedGate;
}
const Unfused& unfused_gelu() {
  return kGelu;
}
const Unfused& unfused_loss() {
  return kLoss;
}
const Unfused& unfused_cross_entropy() {
  return kCrossEntropy;
}
std::span<const Unfused> unfused_parallel_loss() {
  return kParallelLoss;
}
const Unfused& unfused_cap() {
  return kCap;
}
const Unfused& unfused_scores(Scores scores) {
  switch (scores) {
    case Scores::kCapped:
      return kCappedScores;
    case Scores::kSinks:
      return kSinkScores;
    case Scores::kBiased:
      return kBiasedScores;
    case Scores::kFused:
    case Scores::kScaled:
      break;
  }
  return kScaledScores;
}

}  // namespace shardlens::plan
