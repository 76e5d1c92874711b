#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/units.h"

namespace shardlens::plan {

// The settings of a causal language model in a Hugging Face config.json. Defaults are
// transformers'. Only the fields that the family uses are set.
struct ModelConfig {
  std::string family = "llama";  // model_type; core/plan/families has each
  std::string source;            // the config.json it was read from, for messages
  std::string torch_type;        // class name as transformers has it, e.g. "LlamaForCausalLM"
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
  bool attention_bias = false;  // llama
  bool mlp_bias = false;        // llama
  std::string activation;       // "silu", "gelu_new", "gelu", "relu"
  double dropout = 0.0;         // the largest of the config's dropouts; training requires 0
  double initializer_range = 0.02;
  DType dtype = DType::kF32;
  // gpt2
  bool scale_attention_weights = true;
  bool scale_attention_by_inverse_layer = false;
  // llama rope; the flat form (rope_theta, rope_scaling) and transformers 5's rope_parameters are
  // read into the same fields
  double rope_theta = 10000.0;
  std::string rope_type = "default";  // "default", "linear", "llama3"; others are an error
  double rope_factor = 1.0;
  double rope_low_freq_factor = 1.0;
  double rope_high_freq_factor = 4.0;
  int64_t rope_original_max_positions = 0;
};

// `path`: a directory with config.json, or a config.json. Keys that a family does not use are
// ignored, as in transformers.
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

struct Parameter {
  std::string fqn;  // with the path of its first owner, as in named_parameters()
  std::vector<int64_t> shape;
  int64_t numel = 0;
  uint32_t module = 0;               // index of its first owner
  std::vector<std::string> aliases;  // FQNs of later owners (tied); in module order
  bool requires_grad = true;         // false: frozen
  DType dtype = DType::kF32;         // in a model's config: of the engine's master weights
};

struct Module {
  std::string fqn;      // "" for the root
  std::string type;     // "LlamaDecoderLayer", "Linear", "ModuleList", …
  uint32_t parent = 0;  // the root is its own parent
  std::vector<uint32_t> children;
  std::vector<uint32_t>
      parameters;  // indices into ModuleTree::parameters; only its own, including tied ones
};

// A model's modules in the pre-order of modules(), and its parameters in the order of
// named_parameters() (each tied group once).
struct ModuleTree {
  std::vector<Module> modules;
  std::vector<Parameter> parameters;
  std::vector<uint32_t>
      blocks;  // modules that a strategy makes units: the transformer layers, in order

  [[nodiscard]] const Module* find(std::string_view fqn) const;
  // All parameters of the subtree, in traversal order, each once.
  [[nodiscard]] std::vector<uint32_t> subtree_parameters(uint32_t module) const;
};

[[nodiscard]] ModuleTree module_tree(const ModelConfig& config);

}  // namespace shardlens::plan
