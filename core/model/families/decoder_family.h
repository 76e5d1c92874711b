#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json/json_reader.h"
#include "core/model/families/model_family.h"
#include "core/model/model_config.h"

// Decoders described by their parts. A family is a row: what its modules are called, in the order
// in which PyTorch registers them, which parts it has, and the defaults of its config.json. One
// reader, one tree and one forward serve all rows.
namespace shardlens::plan {

// The role of a module. The model's forward runs the parts in the same order in all families.
enum class Part : uint8_t {
  // Of the model.
  kEmbedding,
  kPositions,   // learned position embedding
  kProjectIn,   // from the embedding's width to the model's
  kProjectOut,  // and back
  kLayers,
  kFinalNorm,
  kRotary,
  // Of a layer.
  kAttention,
  kMlp,
  kInputNorm,            // of the attention
  kAttentionOutputNorm,  // of what the attention adds
  kMlpNorm,
  kMlpOutputNorm,
  kDropout,
  // Of attention.
  kQuery,
  kKey,
  kValue,
  kQueryKeyValue,  // one product for all three
  kOutput,
  kQueryNorm,
  kKeyNorm,
  // Of latent attention.
  kQueryDown,
  kQueryDownNorm,
  kQueryUp,
  kKeyValueDown,
  kKeyValueDownNorm,
  kKeyValueUp,
  // Of an MLP.
  kGate,
  kUp,
  kGateUp,  // one product for both
  kDown,
  kActivation,
  // Of a sparse layer's MLP.
  kRouter,
  kExperts,
  kSharedExperts,
};

// A module: its part, its name, and its class, with '*' for the family's prefix; no class: Linear,
// or the class of the config's activation.
struct Slot {
  Part part;
  std::string_view name;
  std::string_view type = {};
};

// The modules of Llama, which many families have.
inline constexpr std::array kLlamaContainers{Slot{Part::kLayers, "model", "*Model"}};
inline constexpr std::array kLlamaModel{Slot{Part::kEmbedding, "embed_tokens", "Embedding"},
                                        Slot{Part::kLayers, "layers", "*DecoderLayer"},
                                        Slot{Part::kFinalNorm, "norm", "*RMSNorm"},
                                        Slot{Part::kRotary, "rotary_emb", "*RotaryEmbedding"}};
inline constexpr std::array kLlamaLayer{
    Slot{Part::kAttention, "self_attn", "*Attention"}, Slot{Part::kMlp, "mlp", "*MLP"},
    Slot{Part::kInputNorm, "input_layernorm", "*RMSNorm"},
    Slot{Part::kMlpNorm, "post_attention_layernorm", "*RMSNorm"}};
inline constexpr std::array kLlamaAttention{
    Slot{Part::kQuery, "q_proj"}, Slot{Part::kKey, "k_proj"}, Slot{Part::kValue, "v_proj"},
    Slot{Part::kOutput, "o_proj"}};
inline constexpr std::array kLlamaMlp{Slot{Part::kGate, "gate_proj"}, Slot{Part::kUp, "up_proj"},
                                      Slot{Part::kDown, "down_proj"},
                                      Slot{Part::kActivation, "act_fn"}};

// Where the biases of linear layers come from.
enum class Bias : uint8_t { kNever, kAlways, kOfKey };

struct DecoderDefaults {  // for keys that a config omits
  int64_t vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008;
  int64_t layers = 32, heads = 32;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;  // 0: hidden_size / heads
  int64_t positions = 2048;
  double norm_eps = 1e-6;
  std::string_view activation = "silu";
  bool tied = false;
  bool biased = false;  // attention_bias
  double rope_theta = 1e4;
  double rope_local_theta = 0.0;  // 0: windowed layers have no rotary embedding of their own
  int64_t padding_index = -1;     // pad_token_id; -1: none
};

// The names of the keys that not all families call the same; "": not in the config.
struct DecoderKeys {
  std::string_view hidden_size = "hidden_size", intermediate_size = "intermediate_size";
  std::string_view layers = "num_hidden_layers", heads = "num_attention_heads";
  std::string_view positions = "max_position_embeddings", activation = "hidden_act";
  std::string_view norm_eps = "rms_norm_eps";  // "": the norms' own
};

// How checkpoint files name the parts of a sparse layer, where the modules have other names: in
// files each expert has tensors of its own, "<layer>.<mlp>.experts.<index>.<part>.weight".
struct StoredNames {
  std::string_view mlp = "";  // "": files have the modules' names
  std::string_view gate, up, down;
};

// How torchtitan's model of a family rotates queries and keys. kNone: it has no such family.
enum class Titan : uint8_t { kNone, kHalves, kComplex };

// All that is particular to a model family; what a row leaves out is as in Llama, without biases.
struct DecoderFamily {
  std::string_view model_type, torch_type;
  std::string_view prefix;  // of the classes of its modules: "Llama"
  DecoderDefaults defaults = {};
  DecoderKeys keys = {};
  std::span<const Slot> containers = kLlamaContainers;  // around the model, from the outside
  std::span<const Slot> model = kLlamaModel, layer = kLlamaLayer, attention = kLlamaAttention;
  std::span<const Slot> mlp = kLlamaMlp;
  std::span<const Slot> sparse = {};  // of the MLP of a sparse layer
  std::string_view sparse_type = "";  // class of a sparse layer's MLP
  Bias query_bias = Bias::kNever;     // of the query, key and value projections
  Bias output_bias = Bias::kNever;
  Bias mlp_bias = Bias::kNever;
  bool layer_norms = false;         // LayerNorm, otherwise RMSNorm
  bool norm_bias = false;           // of LayerNorms
  bool offset_norms = false;        // weights of RMSNorms are 1 + w, computed in fp32
  bool sinks = false;               // the attention has a parameter with a number for each head
  bool wide_norms = false;          // weights of RMSNorms multiply in fp32
  bool scales_embedding = false;    // by a constant
  bool scales_residual = false;     // what attention and MLP add is multiplied by a constant
  bool scales_logits = false;       // by a constant
  bool parallel = false;            // attention and MLP have one input, and are added together
  bool whole_norms = false;         // queries and keys are normalised over all heads
  bool norms_by_head = false;       // their norms have weights of their own for each head
  bool norms_rotated = false;       // they are normalised after they are rotated
  bool scales_queries = false;      // by an operator of its own
  bool gated_activation = true;     // the MLP's activation is multiplied with a second product
  bool transposed_experts = false;  // experts' weights are [in, out]
  bool expert_bias = false;         // the experts' products and the router have biases
  bool fp32_routing = true;         // the experts' weights are fp32 when they multiply
  bool even_heads = false;          // hidden_size must be a multiple of the heads
  bool rotary = true;
  Scores eager = Scores::kFused;  // how transformers runs attention
  Titan torchtitan = Titan::kNone;
  StoredNames stored = {};
  bool trained = false;  // its rotary embedding and padding are read, for training
  std::span<const std::string_view> own_keys = {};  // that read_own() or nothing needs
  // The keys that only this family has.
  void (*read_own)(const JsonNode& root, ModelConfig& config) = nullptr;
};

[[nodiscard]] std::span<const DecoderFamily> decoder_families();
// The row of config.family; nullptr: it is no decoder of the table.
[[nodiscard]] const DecoderFamily* find_decoder_family(const ModelConfig& config);
// The same. Errors: RuntimeFault where there is none.
[[nodiscard]] const DecoderFamily& decoder_family_of(const ModelConfig& config);

// The three functions of a ModelFamily, for every row.
void read_decoder(const JsonNode& root, ModelConfig& config);
[[nodiscard]] ModuleTree decoder_modules(const ModelConfig& config);
void decoder_forward(WorkloadBuilder& build, const ModelConfig& config);

// The slot of `part`; nullptr: the family has none.
[[nodiscard]] const Slot* find_slot(std::span<const Slot> slots, Part part);
// A slot's class, with the family's prefix.
[[nodiscard]] std::string type_of(const DecoderFamily& family, std::string_view type);
[[nodiscard]] bool has_bias(Bias bias, bool of_key);
// Whether attention has the part: latent queries are projected in one step or two, and norms of
// queries and keys may be optional.
[[nodiscard]] bool has_part(const ModelConfig& config, Part part);
// A layer's flag in a list that is empty if no layer has it.
[[nodiscard]] bool flag_of(const std::vector<bool>& flags, int64_t layer);

}  // namespace shardlens::plan
