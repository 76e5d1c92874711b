#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/plan/families/decoder_family.h"
#include "core/plan/families/decoder_readers.h"
#include "core/plan/families/rope_values.h"

// Source of all: transformers 5.23, models/<family>/modeling_<family>.py and
// configuration_<family>.py.
namespace shardlens::plan {
namespace {

using Keys = std::string_view;

constexpr std::array kLlamaContainers{Slot{Part::kLayers, "model", "*Model"}};
constexpr std::array kGemma3Containers{Slot{Part::kLayers, "model", "*TextModel"}};
constexpr std::array kOptContainers{Slot{Part::kLayers, "model", "*Model"},
                                    Slot{Part::kLayers, "decoder", "*Decoder"}};
constexpr std::array kMptContainers{Slot{Part::kLayers, "transformer", "*Model"}};

constexpr std::array kLlamaModel{Slot{Part::kEmbedding, "embed_tokens", "Embedding"},
                                 Slot{Part::kLayers, "layers", "*DecoderLayer"},
                                 Slot{Part::kFinalNorm, "norm", "*RMSNorm"},
                                 Slot{Part::kRotary, "rotary_emb", "*RotaryEmbedding"}};
constexpr std::array kGemmaModel{Slot{Part::kEmbedding, "embed_tokens", "*TextScaledWordEmbedding"},
                                 Slot{Part::kLayers, "layers", "*DecoderLayer"},
                                 Slot{Part::kFinalNorm, "norm", "*RMSNorm"},
                                 Slot{Part::kRotary, "rotary_emb", "*RotaryEmbedding"}};
constexpr std::array kOptModel{
    Slot{Part::kEmbedding, "embed_tokens", "Embedding"},
    Slot{Part::kPositions, "embed_positions", "*LearnedPositionalEmbedding"},
    Slot{Part::kProjectOut, "project_out"},
    Slot{Part::kProjectIn, "project_in"},
    Slot{Part::kFinalNorm, "final_layer_norm", "LayerNorm"},
    Slot{Part::kLayers, "layers", "*DecoderLayer"}};
constexpr std::array kMptModel{Slot{Part::kEmbedding, "wte", "Embedding"},
                               Slot{Part::kLayers, "blocks", "*Block"},
                               Slot{Part::kFinalNorm, "norm_f", "LayerNorm"}};

constexpr std::array kLlamaLayer{Slot{Part::kAttention, "self_attn", "*Attention"},
                                 Slot{Part::kMlp, "mlp", "*MLP"},
                                 Slot{Part::kInputNorm, "input_layernorm", "*RMSNorm"},
                                 Slot{Part::kMlpNorm, "post_attention_layernorm", "*RMSNorm"}};
constexpr std::array kGemmaLayer{
    Slot{Part::kAttention, "self_attn", "*Attention"},
    Slot{Part::kMlp, "mlp", "*MLP"},
    Slot{Part::kInputNorm, "input_layernorm", "*RMSNorm"},
    Slot{Part::kAttentionOutputNorm, "post_attention_layernorm", "*RMSNorm"},
    Slot{Part::kMlpNorm, "pre_feedforward_layernorm", "*RMSNorm"},
    Slot{Part::kMlpOutputNorm, "post_feedforward_layernorm", "*RMSNorm"}};
constexpr std::array kPhi3Layer{Slot{Part::kAttention, "self_attn", "*Attention"},
                                Slot{Part::kMlp, "mlp", "*MLP"},
                                Slot{Part::kInputNorm, "input_layernorm", "*RMSNorm"},
                                Slot{Part::kMlpNorm, "post_attention_layernorm", "*RMSNorm"},
                                Slot{Part::kDropout, "resid_attn_dropout", "Dropout"},
                                Slot{Part::kDropout, "resid_mlp_dropout", "Dropout"}};
// The MLP of these layers is not a module of its own.
constexpr std::array kOptLayer{Slot{Part::kAttention, "self_attn", "*Attention"},
                               Slot{Part::kActivation, "activation_fn"},
                               Slot{Part::kInputNorm, "self_attn_layer_norm", "LayerNorm"},
                               Slot{Part::kUp, "fc1"},
                               Slot{Part::kDown, "fc2"},
                               Slot{Part::kMlpNorm, "final_layer_norm", "LayerNorm"}};
constexpr std::array kMptLayer{
    Slot{Part::kInputNorm, "norm_1", "LayerNorm"}, Slot{Part::kAttention, "attn", "*Attention"},
    Slot{Part::kMlpNorm, "norm_2", "LayerNorm"}, Slot{Part::kMlp, "ffn", "*MLP"},
    Slot{Part::kDropout, "resid_attn_dropout", "Dropout"}};

constexpr std::array kLlamaAttention{Slot{Part::kQuery, "q_proj"}, Slot{Part::kKey, "k_proj"},
                                     Slot{Part::kValue, "v_proj"}, Slot{Part::kOutput, "o_proj"}};
constexpr std::array kNormedAttention{Slot{Part::kQuery, "q_proj"},
                                      Slot{Part::kKey, "k_proj"},
                                      Slot{Part::kValue, "v_proj"},
                                      Slot{Part::kOutput, "o_proj"},
                                      Slot{Part::kQueryNorm, "q_norm", "*RMSNorm"},
                                      Slot{Part::kKeyNorm, "k_norm", "*RMSNorm"}};
constexpr std::array kPhi3Attention{Slot{Part::kOutput, "o_proj"},
                                    Slot{Part::kQueryKeyValue, "qkv_proj"}};
constexpr std::array kOptAttention{Slot{Part::kKey, "k_proj"}, Slot{Part::kValue, "v_proj"},
                                   Slot{Part::kQuery, "q_proj"}, Slot{Part::kOutput, "out_proj"}};
constexpr std::array kMptAttention{Slot{Part::kQueryKeyValue, "Wqkv"},
                                   Slot{Part::kOutput, "out_proj"}};
constexpr std::array kLatentAttention{Slot{Part::kQuery, "q_proj"},
                                      Slot{Part::kQueryDown, "q_a_proj"},
                                      Slot{Part::kQueryDownNorm, "q_a_layernorm", "*RMSNorm"},
                                      Slot{Part::kQueryUp, "q_b_proj"},
                                      Slot{Part::kKeyValueDown, "kv_a_proj_with_mqa"},
                                      Slot{Part::kKeyValueDownNorm, "kv_a_layernorm", "*RMSNorm"},
                                      Slot{Part::kKeyValueUp, "kv_b_proj"},
                                      Slot{Part::kOutput, "o_proj"}};

constexpr std::array kLlamaMlp{Slot{Part::kGate, "gate_proj"}, Slot{Part::kUp, "up_proj"},
                               Slot{Part::kDown, "down_proj"}, Slot{Part::kActivation, "act_fn"}};
constexpr std::array kPhi3Mlp{Slot{Part::kGateUp, "gate_up_proj"}, Slot{Part::kDown, "down_proj"},
                              Slot{Part::kActivation, "activation_fn"}};
constexpr std::array kMptMlp{Slot{Part::kUp, "up_proj"}, Slot{Part::kActivation, "act", "GELU"},
                             Slot{Part::kDown, "down_proj"}};

constexpr std::array kMixtralSparse{Slot{Part::kRouter, "gate", "*TopKRouter"},
                                    Slot{Part::kExperts, "experts", "*Experts"}};
constexpr std::array kQwen3Sparse{Slot{Part::kExperts, "experts", "*Experts"},
                                  Slot{Part::kRouter, "gate", "*TopKRouter"}};
constexpr std::array kGptOssSparse{Slot{Part::kRouter, "router", "*TopKRouter"},
                                   Slot{Part::kExperts, "experts", "*Experts"}};
constexpr std::array kDeepseekSparse{Slot{Part::kExperts, "experts", "*Experts"},
                                     Slot{Part::kRouter, "gate", "*TopkRouter"},
                                     Slot{Part::kSharedExperts, "shared_experts", "*MLP"}};

constexpr std::array<Keys, 1> kMistralKeys{"sliding_window"};
constexpr std::array<Keys, 4> kQwenKeys{"use_sliding_window", "sliding_window", "max_window_layers",
                                        "layer_types"};
constexpr std::array<Keys, 10> kGemmaKeys{"query_pre_attn_scalar",
                                          "hidden_act",
                                          "sliding_window",
                                          "sliding_window_pattern",
                                          "_sliding_window_pattern",
                                          "layer_types",
                                          "final_logit_softcapping",
                                          "attn_logit_softcapping",
                                          "use_bidirectional_attention",
                                          "rope_local_base_freq"};
constexpr std::array<Keys, 5> kPhi3Keys{"sliding_window", "resid_pdrop", "embd_pdrop",
                                        "original_max_position_embeddings",
                                        "partial_rotary_factor"};
constexpr std::array<Keys, 9> kOptKeys{"do_layer_norm_before",
                                       "_remove_final_layer_norm",
                                       "word_embed_proj_dim",
                                       "dropout",
                                       "layerdrop",
                                       "init_std",
                                       "enable_bias",
                                       "layer_norm_elementwise_affine",
                                       "activation_dropout"};
constexpr std::array<Keys, 9> kMptKeys{"resid_pdrop", "emb_pdrop",   "learned_pos_emb",
                                       "attn_config", "init_device", "logit_scale",
                                       "no_bias",     "norm_type",   "embedding_fraction"};
constexpr std::array<Keys, 6> kMixtralKeys{"sliding_window",       "num_experts_per_tok",
                                           "num_local_experts",    "num_experts",
                                           "router_aux_loss_coef", "router_jitter_noise"};
constexpr std::array<Keys, 11> kQwen3MoeKeys{
    "use_sliding_window",    "sliding_window",      "max_window_layers",   "decoder_sparse_step",
    "moe_intermediate_size", "num_experts_per_tok", "num_experts",         "num_local_experts",
    "norm_topk_prob",        "mlp_only_layers",     "router_aux_loss_coef"};
constexpr std::array<Keys, 10> kGptOssKeys{
    "num_local_experts", "num_experts",           "num_experts_per_tok", "sliding_window",
    "swiglu_alpha",      "swiglu_limit",          "layer_types",         "router_aux_loss_coef",
    "experts_per_token", "initial_context_length"};
constexpr std::array<Keys, 25> kDeepseekKeys{"moe_intermediate_size",
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

const std::array kDecoders{
    DecoderFamily{.model_type = "llama",
                  .torch_type = "LlamaForCausalLM",
                  .prefix = "Llama",
                  .containers = kLlamaContainers,
                  .model = kLlamaModel,
                  .layer = kLlamaLayer,
                  .attention = kLlamaAttention,
                  .mlp = kLlamaMlp,
                  .query_bias = Bias::kOfKey,
                  .output_bias = Bias::kOfKey,
                  .mlp_bias = Bias::kOfKey,
                  .even_heads = true,
                  .torchtitan = Titan::kComplex,
                  .trained = true,
                  .read_own = read_llama_rope},
    DecoderFamily{.model_type = "mistral",
                  .torch_type = "MistralForCausalLM",
                  .prefix = "Mistral",
                  .defaults = {.intermediate_size = 14336, .kv_heads = 8, .positions = 131072},
                  .containers = kLlamaContainers,
                  .model = kLlamaModel,
                  .layer = kLlamaLayer,
                  .attention = kLlamaAttention,
                  .mlp = kLlamaMlp,
                  .trained = true,
                  .own_keys = kMistralKeys,
                  .read_own = read_mistral},
    DecoderFamily{.model_type = "qwen2",
                  .torch_type = "Qwen2ForCausalLM",
                  .prefix = "Qwen2",
                  .defaults = {.vocab_size = 151936,
                               .intermediate_size = 22016,
                               .kv_heads = 32,
                               .positions = 32768},
                  .containers = kLlamaContainers,
                  .model = kLlamaModel,
                  .layer = kLlamaLayer,
                  .attention = kLlamaAttention,
                  .mlp = kLlamaMlp,
                  .query_bias = Bias::kAlways,
                  .trained = true,
                  .own_keys = kQwenKeys,
                  .read_own = read_qwen},
    DecoderFamily{.model_type = "qwen3",
                  .torch_type = "Qwen3ForCausalLM",
                  .prefix = "Qwen3",
                  .defaults = {.vocab_size = 151936,
                               .intermediate_size = 22016,
                               .kv_heads = 32,
                               .head_dim = 128,
                               .positions = 32768},
                  .containers = kLlamaContainers,
                  .model = kLlamaModel,
                  .layer = kLlamaLayer,
                  .attention = kNormedAttention,
                  .mlp = kLlamaMlp,
                  .query_bias = Bias::kOfKey,
                  .output_bias = Bias::kOfKey,
                  .torchtitan = Titan::kHalves,
                  .trained = true,
                  .own_keys = kQwenKeys,
                  .read_own = read_qwen},
    DecoderFamily{.model_type = "gemma2",
                  .torch_type = "Gemma2ForCausalLM",
                  .prefix = "Gemma2",
                  .defaults = {.vocab_size = 256000,
                               .hidden_size = 2304,
                               .intermediate_size = 9216,
                               .layers = 26,
                               .heads = 8,
                               .kv_heads = 4,
                               .head_dim = 256,
                               .positions = 8192,
                               .activation = "gelu_pytorch_tanh",
                               .tied = true,
                               .padding_index = 0},
                  .keys = {.activation = "hidden_activation"},
                  .containers = kLlamaContainers,
                  .model = kGemmaModel,
                  .layer = kGemmaLayer,
                  .attention = kLlamaAttention,
                  .mlp = kLlamaMlp,
                  .query_bias = Bias::kOfKey,
                  .output_bias = Bias::kOfKey,
                  .offset_norms = true,
                  .scales_embedding = true,
                  .even_heads = true,
                  .eager = Scores::kCapped,
                  .trained = true,
                  .own_keys = kGemmaKeys,
                  .read_own = read_gemma},
    DecoderFamily{.model_type = "gemma3_text",
                  .torch_type = "Gemma3ForCausalLM",
                  .prefix = "Gemma3",
                  .defaults = {.vocab_size = 262208,
                               .hidden_size = 2304,
                               .intermediate_size = 9216,
                               .layers = 26,
                               .heads = 8,
                               .kv_heads = 4,
                               .head_dim = 256,
                               .positions = 131072,
                               .activation = "gelu_pytorch_tanh",
                               .tied = true,
                               .rope_theta = 1e6,
                               .rope_local_theta = 1e4,
                               .padding_index = 0},
                  .keys = {.activation = "hidden_activation"},
                  .containers = kGemma3Containers,
                  .model = kGemmaModel,
                  .layer = kGemmaLayer,
                  .attention = kNormedAttention,
                  .mlp = kLlamaMlp,
                  .query_bias = Bias::kOfKey,
                  .output_bias = Bias::kOfKey,
                  .offset_norms = true,
                  .scales_embedding = true,
                  .even_heads = true,
                  .trained = true,
                  .own_keys = kGemmaKeys,
                  .read_own = read_gemma},
    DecoderFamily{.model_type = "phi3",
                  .torch_type = "Phi3ForCausalLM",
                  .prefix = "Phi3",
                  .defaults = {.vocab_size = 32064,
                               .hidden_size = 3072,
                               .intermediate_size = 8192,
                               .positions = 4096,
                               .norm_eps = 1e-5},
                  .containers = kLlamaContainers,
                  .model = kLlamaModel,
                  .layer = kPhi3Layer,
                  .attention = kPhi3Attention,
                  .mlp = kPhi3Mlp,
                  .own_keys = kPhi3Keys,
                  .read_own = read_phi3},
    DecoderFamily{.model_type = "opt",
                  .torch_type = "OPTForCausalLM",
                  .prefix = "OPT",
                  .defaults = {.vocab_size = 50272,
                               .hidden_size = 768,
                               .intermediate_size = 3072,
                               .layers = 12,
                               .heads = 12,
                               .positions = 2048,
                               .activation = "relu",
                               .tied = true},
                  .keys = {.intermediate_size = "ffn_dim",
                           .activation = "activation_function",
                           .norm_eps = ""},
                  .containers = kOptContainers,
                  .model = kOptModel,
                  .layer = kOptLayer,
                  .attention = kOptAttention,
                  .mlp = kOptLayer,
                  .query_bias = Bias::kOfKey,
                  .output_bias = Bias::kOfKey,
                  .mlp_bias = Bias::kOfKey,
                  .layer_norms = true,
                  .norm_bias = true,
                  .scales_queries = true,
                  .gated_activation = false,
                  .even_heads = true,
                  .rotary = false,
                  .own_keys = kOptKeys,
                  .read_own = read_opt},
    DecoderFamily{.model_type = "mpt",
                  .torch_type = "MptForCausalLM",
                  .prefix = "Mpt",
                  .defaults = {.vocab_size = 50368,
                               .hidden_size = 2048,
                               .intermediate_size = 4,
                               .layers = 24,
                               .heads = 16,
                               .positions = 2048,
                               .activation = "gelu",
                               .tied = true},
                  .keys = {.hidden_size = "d_model",
                           .intermediate_size = "expansion_ratio",
                           .layers = "n_layers",
                           .heads = "n_heads",
                           .positions = "max_seq_len",
                           .activation = "",
                           .norm_eps = "layer_norm_epsilon"},
                  .containers = kMptContainers,
                  .model = kMptModel,
                  .layer = kMptLayer,
                  .attention = kMptAttention,
                  .mlp = kMptMlp,
                  .layer_norms = true,
                  .gated_activation = false,
                  .even_heads = true,
                  .rotary = false,
                  .eager = Scores::kBiased,
                  .own_keys = kMptKeys,
                  .read_own = read_mpt},
    DecoderFamily{.model_type = "mixtral",
                  .torch_type = "MixtralForCausalLM",
                  .prefix = "Mixtral",
                  .defaults = {.intermediate_size = 14336,
                               .kv_heads = 8,
                               .positions = 131072,
                               .norm_eps = 1e-5,
                               .rope_theta = 1e6},
                  .containers = kLlamaContainers,
                  .model = kLlamaModel,
                  .layer = kLlamaLayer,
                  .attention = kLlamaAttention,
                  .mlp = kLlamaMlp,
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
        .containers = kLlamaContainers,
        .model = kLlamaModel,
        .layer = kLlamaLayer,
        .attention = kNormedAttention,
        .mlp = kLlamaMlp,
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
                  .containers = kLlamaContainers,
                  .model = kLlamaModel,
                  .layer = kLlamaLayer,
                  .attention = kLlamaAttention,
                  .mlp = kLlamaMlp,
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
                  .containers = kLlamaContainers,
                  .model = kLlamaModel,
                  .layer = kLlamaLayer,
                  .attention = kLatentAttention,
                  .mlp = kLlamaMlp,
                  .sparse = kDeepseekSparse,
                  .sparse_type = "*MoE",
                  .query_bias = Bias::kOfKey,
                  .output_bias = Bias::kOfKey,
                  .torchtitan = Titan::kComplex,
                  .own_keys = kDeepseekKeys,
                  .read_own = read_deepseek_v3}};

}  // namespace

std::span<const DecoderFamily> decoder_families() {
  return kDecoders;
}

const DecoderFamily* find_decoder_family(const ModelConfig& config) {
  const auto found = std::find_if(
      kDecoders.begin(), kDecoders.end(),
      [&config](const DecoderFamily& family) { return family.model_type == config.family; });
  return found == kDecoders.end() ? nullptr : &*found;
}

const DecoderFamily& decoder_family_of(const ModelConfig& config) {
  const DecoderFamily* found = find_decoder_family(config);
  SHARDLENS_CHECK(found != nullptr, "the family is no decoder of the table");
  return *found;
}

const Slot* find_slot(std::span<const Slot> slots, Part part) {
  const auto found =
      std::find_if(slots.begin(), slots.end(), [part](const Slot& s) { return s.part == part; });
  return found == slots.end() ? nullptr : &*found;
}

std::string type_of(const DecoderFamily& family, std::string_view type) {
  return type.starts_with('*') ? std::string(family.prefix) + std::string(type.substr(1))
                               : std::string(type);
}

bool has_bias(Bias bias, bool of_key) {
  return bias == Bias::kAlways || (bias == Bias::kOfKey && of_key);
}

bool has_part(const ModelConfig& config, Part part) {
  switch (part) {
    case Part::kQuery:
      return config.latent.key_value_rank == 0 || config.latent.query_rank == 0;
    case Part::kQueryDown:
    case Part::kQueryDownNorm:
    case Part::kQueryUp:
      return config.latent.query_rank > 0;
    case Part::kProjectIn:
    case Part::kProjectOut:
      return config.embedding_size != config.hidden_size;
    case Part::kFinalNorm:
      return config.final_norm;
    default:
      return true;
  }
}

bool flag_of(const std::vector<bool>& flags, int64_t layer) {
  return !flags.empty() && flags[static_cast<size_t>(layer)];
}

}  // namespace shardlens::plan
