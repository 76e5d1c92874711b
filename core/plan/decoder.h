#pragma once

#include <cstdint>

#include "core/plan/resolved_plan.h"
#include "core/plan/workload.h"

namespace shardlens::plan {

// A causal transformer that nothing but its sizes describes: what tables of published training runs
// print. Queries, keys and values are one product; the head has no bias.
struct DecoderShape {
  int64_t layers = 0, hidden = 0;
  int64_t ffn = 0;  // width of the MLP
  int64_t heads = 0, kv_heads = 0;
  int64_t vocab = 0;
  int64_t positions = 0;  // rows of a learned table of positions; 0: rotary embeddings instead
  bool gated = false;     // silu(gate) * up and RMSNorm, as in llama; otherwise GELU and LayerNorm
  bool tied = false;      // the head is the embedding
  bool bias = false;      // of linears and LayerNorms
  friend bool operator==(const DecoderShape&, const DecoderShape&) = default;
};

// embed_tokens, embed_positions, layers.<i>.{norm_1, attn.{qkv, out}, norm_2, ffn.{gate, up,
// down}}, norm, head; every layer a block.
[[nodiscard]] ModuleTree decoder_tree(const DecoderShape& shape);
// Elements of its parameters, without making the tree.
[[nodiscard]] int64_t parameter_count(const DecoderShape& shape);

// Its step, as step_workload() makes those of models that the engine trains; `plan` is one for its
// tree. Errors: InputError when batch or seq is not positive, or seq exceeds the positions.
[[nodiscard]] Workload decoder_workload(const DecoderShape& shape,
                                        const ResolvedPlan& plan,
                                        const StepSettings& settings);

}  // namespace shardlens::plan
