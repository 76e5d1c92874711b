#pragma once

#include <cstdint>

#include "core/plan/resolved_plan.h"
#include "core/workload/workload.h"

namespace shardlens::plan {

// A causal transformer described only by its sizes, as tables of published training runs give them.
// Queries, keys and values are computed by one linear layer; the head has no bias.
struct DecoderShape {
  int64_t layers = 0, hidden = 0;
  int64_t ffn = 0;  // width of the MLP
  int64_t heads = 0, kv_heads = 0;
  int64_t vocab = 0;
  int64_t positions = 0;  // rows of a learned position embedding; 0: rotary embeddings instead
  bool gated = false;     // silu(gate) * up and RMSNorm, as in llama; otherwise GELU and LayerNorm
  bool tied = false;      // the head shares the weight of the embedding
  bool bias = false;      // linear layers and LayerNorms have a bias
  friend bool operator==(const DecoderShape&, const DecoderShape&) = default;
};

// embed_tokens, embed_positions, layers.<i>.{norm_1, attn.{qkv, out}, norm_2, ffn.{gate, up,
// down}}, norm, head; every layer is a block.
[[nodiscard]] ModuleTree decoder_tree(const DecoderShape& shape);
// Number of elements of all parameters; does not build the tree.
[[nodiscard]] int64_t parameter_count(const DecoderShape& shape);

// The training step of this model, like step_workload() for the models that the engine trains;
// `plan` must be for decoder_tree(shape). Errors: InputError if batch or seq is not positive, or
// seq exceeds the positions.
[[nodiscard]] Workload decoder_workload(const DecoderShape& shape,
                                        const ResolvedPlan& plan,
                                        const StepSettings& settings);

}  // namespace shardlens::plan
