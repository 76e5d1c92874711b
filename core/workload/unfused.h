#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/workload/workload.h"

namespace shardlens::plan {

// One kernel of a part of a model that runs as several. Sizes are numbers per element of the part's
// input: of the parameters' dtype, or of fp32; and fp32 numbers per normalised row.
struct Piece {
  std::string_view name;
  double read = 0, read_f32 = 0, written = 0, written_f32 = 0;
  double read_row = 0, written_row = 0;
  // In backward what Operator::takes is; by default the output of the one before, which for the
  // first is the gradient that comes to the part.
  uint32_t takes = takes_before(1);
  double frees = 0;    // of backward: values that the part saved and that no later piece reads
  double scratch = 0;  // values in tensors that the program holds until then, and no longer
  // Above 0: products in fp32 of a column of so many numbers with a row, [column, 1]·[1, row].
  int64_t column = 0, row = 0;
};

// Attention as one kernel, or as two products with the matrix of scores in memory between them.
// kScaled: with a mask; kCapped: also capped by tanh; kSinks: with a learned number for each head;
// kBiased: with biases by distance.
enum class Scores : uint8_t { kFused, kScaled, kCapped, kSinks, kBiased };

// The operators that transformers runs in place of one operator of the engine. The last forward
// piece saves.
struct Unfused {
  std::span<const Piece> forward, backward;
  double saved = 0, saved_f32 = 0, saved_row = 0;
};

// transformers 5.23, recorded with torch 2.11 by `python -m shardlens.export`
// (tests/tools/compare_export.py compares them operator by operator).
[[nodiscard]] const Unfused& unfused_rms_norm();  // LlamaRMSNorm and its copies
[[nodiscard]] const Unfused&
unfused_offset_rms_norm();                             // Gemma3RMSNorm: weights are 1 + w, in fp32
[[nodiscard]] const Unfused& unfused_wide_rms_norm();  // GptOssRMSNorm: weights multiply in fp32
[[nodiscard]] const Unfused& unfused_clamped_gate();   // GptOssExperts
// swiglu() of torchtitan's models/gpt_oss/moe.py (May 2026, and 0.2.2): gate and linear part are
// every second number of a row.
[[nodiscard]] const Unfused& unfused_interleaved_gate();
[[nodiscard]] const Unfused& unfused_rotary();  // of queries or of keys: apply_rotary_pos_emb
// The engine's: its queries and keys are not transposed, so that their gradients are not copied.
[[nodiscard]] const Unfused& unfused_rotary_of_engine();
// torchtitan's of halves, in fp32 as since pull request 2575 of March 2026, which is after version
// 0.2.2: models/common/rope.py of 0.3.0.
[[nodiscard]] const Unfused& unfused_wide_rotary(DType dtype);
// torchtitan's, of fp32 pairs as complex numbers: models/llama3/model/model.py, version 0.2.2.
[[nodiscard]] const Unfused& unfused_complex_rotary(DType dtype);
[[nodiscard]] const Unfused& unfused_silu_multiply();  // down_proj(act_fn(gate) * up): two kernels
// The same where backward computes the activation's result again: aot_eager's partitioner.
[[nodiscard]] const Unfused& unfused_recomputed_silu_multiply();
[[nodiscard]] const Unfused& unfused_gelu();           // NewGELUActivation (gelu_new)
[[nodiscard]] const Unfused& unfused_loss();           // ForCausalLMLoss: logits in fp32
[[nodiscard]] const Unfused& unfused_cross_entropy();  // the same of the engine (token_loss)
// The same of a part of the vocabulary (loss_parallel): after each part the ranks reduce a number
// for each row.
[[nodiscard]] std::span<const Unfused> unfused_parallel_loss();

[[nodiscard]] const Unfused& unfused_cap();  // of the logits (final_logit_softcapping)
// Between the two products of attention that transformers runs without a kernel for both.
[[nodiscard]] const Unfused& unfused_scores(Scores scores);

}  // namespace shardlens::plan
