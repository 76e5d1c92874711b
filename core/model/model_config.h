#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/tree/module_tree.h"

namespace shardlens::plan {

struct ModelFile;

// The head of a model, after its last layer: transformers' ...ForCausalLM, ...Model (nothing),
// ...ForSequenceClassification, ...ForTokenClassification and ...ForQuestionAnswering.
enum class ModelHead : uint8_t { kCausal, kNone, kSequence, kTokens, kSpans };

// The settings of a model in a Hugging Face config.json, or a recorded model. Defaults are
// transformers'. Only the fields that the family uses are set.
struct ModelConfig {
  std::string family = "llama";  // model_type; core/model/families has each
  std::string source;            // the config.json it was read from, for messages
  std::string torch_type;        // class name as transformers has it, e.g. "LlamaForCausalLM"
  ModelHead head = ModelHead::kCausal;
  std::string base_name;  // of the module with all but the head, where it is not the family's
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // llama MLP; gpt2 n_inner (4 * hidden by default)
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // grouped-query attention; = heads otherwise
  int64_t head_dim = 0;
  int64_t max_positions = 0;
  double norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  std::string activation;  // "silu", "gelu_new", "gelu", "relu", "gelu_pytorch_tanh"
  double dropout = 0.0;    // the largest of the config's dropouts; training requires 0
  double initializer_range = 0.02;
  DType dtype = DType::kF32;
  // gpt2
  bool scale_attention_weights = true;
  bool scale_attention_by_inverse_layer = false;
  // Rotary embedding of the families that are trained; the flat form (rope_theta, rope_scaling) and
  // transformers 5's rope_parameters are read into the same fields
  double rope_theta = 10000.0;
  double rope_local_theta = 0.0;  // of layers with a window, unscaled (gemma3); 0: as all layers
  std::string rope_type = "default";  // the engine computes "default", "linear" and "llama3"
  double rope_factor = 1.0;
  double rope_low_freq_factor = 1.0;
  double rope_high_freq_factor = 4.0;
  int64_t rope_original_max_positions = 0;
  // Decoders (core/model/families/decoder_family.h). A list by layer that is empty: no layer.
  int64_t sliding_window = 0;          // keys that a windowed layer attends to
  std::vector<bool> windowed;          // by layer: attends to the window only
  std::vector<bool> sparse;            // by layer: experts instead of an MLP
  std::vector<bool> unrotated;         // by layer: attention without rotary embedding
  bool query_key_norms = false;        // queries and keys are normalised
  double rotary_share = 1.0;           // of a head that is rotated
  double logit_cap = 0.0;              // logits are cap · tanh(x / cap); 0: not capped
  double score_cap = 0.0;              // the same of the attention's scores
  double query_scalar = 0.0;           // scores are divided by its root; 0: head_dim
  int64_t padding_index = -1;          // token whose embedding gets no gradient; -1: none
  bool clips_queries = false;          // mpt: clip_qkv
  int64_t embedding_size = 0;          // opt: of the embedding and the head; others: hidden_size
  bool norm_before = true;             // false: norms follow attention and MLP (opt-350m)
  bool final_norm = true;              // after the last layer
  bool affine_norms = true;            // norms have weights
  bool flash = false;                  // attn_implementation is FlashAttention, which takes sinks
  struct Experts {                     // of a sparse layer
    int64_t count = 0, per_token = 0;  // routed ones
    int64_t intermediate_size = 0;     // of each
    int64_t shared = 0;                // that every token passes through
    bool normalized = false;           // the weights of a token's experts sum to 1
    bool auxiliary_loss = false;       // output_router_logits: a term of the loss balances them
    double jitter = 0.0;               // noise on the router's input
  } experts;
  struct Latent {            // deepseek_v3: low-rank queries, keys and values
    int64_t query_rank = 0;  // 0: queries are projected directly
    int64_t key_value_rank = 0;
    int64_t rope_dim = 0, plain_dim = 0;  // of a head's query and key: rotated, not rotated
    int64_t value_dim = 0;
    bool sdpa = false;  // "attn_implementation": "sdpa", where torchtitan would call flex_attention
  } latent;
  // Adapters of linear layers: y = W x + B A x, with `rank` rows in A. Every other parameter is
  // frozen. `targets`: last parts of the layers' names. 0: none.
  struct Lora {
    int64_t rank = 0;
    std::vector<std::string> targets;
  } lora;
  // vit
  int64_t channels = 0, patch_height = 0, patch_width = 0;
  int64_t patches = 0;             // of an image; a sample has one token more. 0: takes tokens
  int64_t labels = 0;              // also of heads that classify
  std::string quantization;        // quant_method of the published weights; "": not quantised
  std::vector<std::string> notes;  // sentences on settings that change no module
  // Not nullptr: the model is a model.json (core/model/model_file.h), and the fields above are
  // unset.
  std::shared_ptr<const ModelFile> file = nullptr;
};

// `path`: a directory with config.json, a config.json, or a model.json. Keys that are known not to
// change a model's structure are ignored; in the families other than gpt2 and mlp an unknown key is
// an error unless it is null or false.
//
// Family mlp is Shardlens' own: {"model_type": "mlp", "vocab_size" (256), "hidden_size" (64),
// "num_hidden_layers" (4), "intermediate_size" (4 · hidden_size), "tie_word_embeddings" (false)},
// with the modules
//   embed_tokens  Embedding(vocab, hidden)
//   layers.<i>    MlpBlock: x + fc2(relu(fc1(x))); fc1 and fc2 have a bias
//     fc1         Linear(hidden, intermediate)
//     fc2         Linear(intermediate, hidden)
//   lm_head       Linear(hidden, vocab) without bias
// Errors: InputError with file and JSON pointer, what was expected, and the nearest valid name.
[[nodiscard]] ModelConfig load_model_config(const std::filesystem::path& path);
[[nodiscard]] ModelConfig parse_model_config(std::string_view json, const std::string& source);

// The modules of the model, as its family or its model.json has them.
[[nodiscard]] ModuleTree module_tree(const ModelConfig& config);
// Elements of the parameters that a token passes through: of the routed experts, as many as it is
// sent to.
[[nodiscard]] int64_t active_parameters(const ModelConfig& config, const ModuleTree& tree);

}  // namespace shardlens::plan
