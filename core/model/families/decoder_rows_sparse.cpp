#include <array>

#include "core/model/families/decoder_family.h"
#include "core/model/families/decoder_readers.h"
#include "core/model/families/decoder_slots.h"

// Source of all: transformers 5.23, models/<family>/modeling_<family>.py and
// configuration_<family>.py.
namespace shardlens::plan {
namespace {

using SparseKeys = std::string_view;

constexpr std::array kLatentAttention{Slot{Part::kQuery, "q_proj"},
                                      Slot{Part::kQueryDown, "q_a_proj"},
                                      Slot{Part::kQueryDownNorm, "q_a_layernorm", "*RMSNorm"},
                                      Slot{Part::kQueryUp, "q_b_proj"},
                                      Slot{Part::kKeyValueDown, "kv_a_proj_with_mqa"},
                                      Slot{Part::kKeyValueDownNorm, "kv_a_layernorm", "*RMSNorm"},
                                      Slot{Part::kKeyValueUp, "kv_b_proj"},
                                      Slot{Part::kOutput, "o_proj"}};

constexpr std::array kMixtralSparse{Slot{Part::kRouter, "gate", "*TopKRouter"},
                                    Slot{Part::kExperts, "experts", "*Experts"}};
constexpr std::array kQwen3Sparse{Slot{Part::kExperts, "experts", "*Experts"},
                                  Slot{Part::kRouter, "gate", "*TopKRouter"}};
constexpr std::array kGptOssSparse{Slot{Part::kRouter, "router", "*TopKRouter"},
                                   Slot{Part::kExperts, "experts", "*Experts"}};
constexpr std::array kDeepseekSparse{Slot{Part::kExperts, "experts", "*Experts"},
                                     Slot{Part::kRouter, "gate", "*TopkRouter"},
                                     Slot{Part::kSharedExperts, "shared_experts", "*MLP"}};

constexpr std::array<SparseKeys, 6> kMixtralKeys{"sliding_window",       "num_experts_per_tok",
                                                 "num_local_experts",    "num_experts",
                                                 "router_aux_loss_coef", "router_jitter_noise"};
constexpr std::array<SparseKeys, 11> kQwen3MoeKeys{
    "use_sliding_window",    "sliding_window",      "max_window_layers",   "decoder_sparse_step",
    "moe_intermediate_size", "num_experts_per_tok", "num_experts",         "num_local_experts",
    "norm_topk_prob",        "mlp_only_layers",     "router_aux_loss_coef"};
constexpr std::array<SparseKeys, 10> kGptOssKeys{
    "num_local_experts", "num_experts",           "num_experts_per_tok", "sliding_window",
    "swiglu_alpha",      "swiglu_limit",          "layer_types",         "router_aux_loss_coef",
    "experts_per_token", "initial_context_length"};
constexpr std::array<SparseKeys, 25> kDeepseekKeys{"moe_intermediate_size",
                                                   "n_shared_experts",
                                                   "n_routed_experts",
                                                   "routed_scaling_factor",
                                                   "kv_lora_rank",
                                                   "q_lora_rank",
                                                   "qk_rope_head_dim",
                                                   "v_head_dim",
                                                   "qk_nope_head_dim",
                                                   "n_group",
                                                   "topk_group",
                                                   "num_experts_per_tok",
                                                   "first_k_dense_replace",
                                                   "norm_topk_prob",
                                                   "rope_interleave",
                                                   "num_mtp_layers",
                                                   "num_nextn_predict_layers",
                                                   "moe_layer_freq",
                                                   "scoring_func",
                                                   "topk_method",
                                                   "aux_loss_alpha",
                                                   "seq_aux",
                                                   "ep_size",
                                                   "num_local_experts",
                                                   "router_aux_loss_coef"};

const std::array kSparseDecoders{
    DecoderFamily{.model_type = "mixtral",
                  .torch_type = "MixtralForCausalLM",
                  .prefix = "Mixtral",
                  .defaults = {.intermediate_size = 14336,
                               .kv_heads = 8,
                               .positions = 131072,
                               .norm_eps = 1e-5,
                               .rope_theta = 1e6},
                  .sparse = kMixtralSparse,
                  .sparse_type = "*SparseMoeBlock",
                  .stored = {.mlp = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"},
                  .trained = true,
                  .own_keys = kMixtralKeys,
                  .read_own = read_mixtral},
    DecoderFamily{
        .model_type = "qwen3_moe",
        .torch_type = "Qwen3MoeForCausalLM",
        .prefix = "Qwen3Moe",
        .defaults = {.vocab_size = 151936,
                     .hidden_size = 2048,
                     .intermediate_size = 6144,
                     .layers = 24,
                     .kv_heads = 4,
                     .positions = 32768},
        .attention = kNormedAttention,
        .sparse = kQwen3Sparse,
        .sparse_type = "*SparseMoeBlock",
        .query_bias = Bias::kOfKey,
        .output_bias = Bias::kOfKey,
        .fp32_routing = false,
        .torchtitan = Titan::kHalves,
        .stored = {.mlp = "mlp", .gate = "gate_proj", .up = "up_proj", .down = "down_proj"},
        .trained = true,
        .own_keys = kQwen3MoeKeys,
        .read_own = read_qwen3_moe},
    DecoderFamily{.model_type = "gpt_oss",
                  .torch_type = "GptOssForCausalLM",
                  .prefix = "GptOss",
                  .defaults = {.vocab_size = 201088,
                               .hidden_size = 2880,
                               .intermediate_size = 2880,
                               .layers = 36,
                               .heads = 64,
                               .kv_heads = 8,
                               .head_dim = 64,
                               .positions = 131072,
                               .norm_eps = 1e-5,
                               .biased = true},
                  .sparse = kGptOssSparse,
                  .sparse_type = "*MLP",
                  .query_bias = Bias::kOfKey,
                  .output_bias = Bias::kOfKey,
                  .sinks = true,
                  .wide_norms = true,
                  .transposed_experts = true,
                  .expert_bias = true,
                  .fp32_routing = false,
                  .eager = Scores::kSinks,
                  .torchtitan = Titan::kHalves,
                  .own_keys = kGptOssKeys,
                  .read_own = read_gpt_oss},
    DecoderFamily{.model_type = "deepseek_v3",
                  .torch_type = "DeepseekV3ForCausalLM",
                  .prefix = "DeepseekV3",
                  .defaults = {.vocab_size = 129280,
                               .hidden_size = 7168,
                               .intermediate_size = 18432,
                               .layers = 61,
                               .heads = 128,
                               .kv_heads = 128,
                               .positions = 4096},
                  .attention = kLatentAttention,
                  .sparse = kDeepseekSparse,
                  .sparse_type = "*MoE",
                  .query_bias = Bias::kOfKey,
                  .output_bias = Bias::kOfKey,
                  .torchtitan = Titan::kComplex,
                  .own_keys = kDeepseekKeys,
                  .read_own = read_deepseek_v3}};

}  // namespace

std::span<const DecoderFamily> sparse_decoders() {
  return kSparseDecoders;
}

}  // namespace shardlens::plan
