#pragma once

#include <array>
#include <span>

#include "core/model/families/decoder_family.h"

// The modules that rows of more than one file have, and those files' rows, which decoder_families()
// joins.
namespace shardlens::plan {

inline constexpr std::array kNormedAttention{Slot{Part::kQuery, "q_proj"},
                                             Slot{Part::kKey, "k_proj"},
                                             Slot{Part::kValue, "v_proj"},
                                             Slot{Part::kOutput, "o_proj"},
                                             Slot{Part::kQueryNorm, "q_norm", "*RMSNorm"},
                                             Slot{Part::kKeyNorm, "k_norm", "*RMSNorm"}};
inline constexpr std::array kPhi3Mlp{Slot{Part::kGateUp, "gate_up_proj"},
                                     Slot{Part::kDown, "down_proj"},
                                     Slot{Part::kActivation, "activation_fn"}};
inline constexpr std::array kGemmaModel{
    Slot{Part::kEmbedding, "embed_tokens", "*TextScaledWordEmbedding"},
    Slot{Part::kLayers, "layers", "*DecoderLayer"}, Slot{Part::kFinalNorm, "norm", "*RMSNorm"},
    Slot{Part::kRotary, "rotary_emb", "*RotaryEmbedding"}};

// Dense decoders with Llama's parts, and norms, biases or scales of their own.
[[nodiscard]] std::span<const DecoderFamily> decoders_after_llama();
// Decoders with experts.
[[nodiscard]] std::span<const DecoderFamily> sparse_decoders();

}  // namespace shardlens::plan
