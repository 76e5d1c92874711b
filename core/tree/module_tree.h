#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"

namespace shardlens::plan {

struct Parameter {  // one parameter, however many modules share it
  std::string fqn;  // with the path of its first owner, as in named_parameters()
  std::vector<int64_t> shape;
  int64_t numel = 0;
  uint32_t module = 0;               // index of its first owner
  std::vector<std::string> aliases;  // FQNs of later owners (tied); in module order
  bool requires_grad = true;         // false: frozen
  DType dtype = DType::kF32;         // in a model's config: of the engine's master weights
  // Bytes that the optimizer keeps for an element, as a recorded run has them; nullopt: those of
  // StepSettings::optimizer.
  std::optional<double> state_bytes = std::nullopt;
};

struct Module {         // one module; owns parameters and children
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

}  // namespace shardlens::plan
