#include <algorithm>
#include <array>
#include <vector>

#include "core/base/error.h"
#include "core/model/families/decoder_family.h"
#include "core/model/families/decoder_readers.h"
#include "core/model/families/decoder_slots.h"
#include "core/model/families/rope_values.h"

// Source of all: transformers 5.23, models/<family>/modeling_<family>.py and
// configuration_<family>.py.
namespace shardlens::plan {
namespace {

using Keys = std::string_view;

constexpr std::array kGemma3Containers{Slot{Part::kLayers, "model", "*TextModel"}};
constexpr std::array kOptContainers{Slot{Part::kLayers, "model", "*Model"},
                                    Slot{Part::kLayers, "decoder", "*Decoder"}};
constexpr std::array kMptContainers{Slot{Part::kLayers, "transformer", "*Model"}};

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

constexpr std::array kPhi3Attention{Slot{Part::kOutput, "o_proj"},
                                    Slot{Part::kQueryKeyValue, "qkv_proj"}};
constexpr std::array kOptAttention{Slot{Part::kKey, "k_proj"}, Slot{Part::kValue, "v_proj"},
                                   Slot{Part::kQuery, "q_proj"}, Slot{Part::kOutput, "out_proj"}};
constexpr std::array kMptAttention{Slot{Part::kQueryKeyValue, "Wqkv"},
                                   Slot{Part::kOutput, "out_proj"}};

constexpr std::array kMptMlp{Slot{Part::kUp, "up_proj"}, Slot{Part::kActivation, "act", "GELU"},
                             Slot{Part::kDown, "down_proj"}};

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
const std::array kDecoders{
    DecoderFamily{.model_type = "llama",
                  .torch_type = "LlamaForCausalLM",
                  .prefix = "Llama",
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
                  .attention = kNormedAttention,
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
                  .model = kGemmaModel,
                  .layer = kGemmaLayer,
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
                  .read_own = read_mpt}};

}  // namespace

std::span<const DecoderFamily> decoder_families() {
  static const std::vector<DecoderFamily> kAll = [] {
    std::vector<DecoderFamily> out(kDecoders.begin(), kDecoders.end());
    for (const std::span<const DecoderFamily> more : {decoders_after_llama(), sparse_decoders()}) {
      out.insert(out.end(), more.begin(), more.end());
    }
    return out;
  }();
  return kAll;
}

const DecoderFamily* find_decoder_family(const ModelConfig& config) {
  for (const DecoderFamily& family : decoder_families()) {
    if (family.model_type == config.family) {
      return &family;
    }
  }
  return nullptr;
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
    case Part::kQueryNorm:
    case Part::kKeyNorm:
      return config.query_key_norms;
    default:
      return true;
  }
}

bool flag_of(const std::vector<bool>& flags, int64_t layer) {
  return !flags.empty() && flags[static_cast<size_t>(layer)];
}

}  // namespace shardlens::plan
