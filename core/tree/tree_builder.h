#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/tree/module_tree.h"

namespace shardlens::plan {

// Builds a tree in the order in which a torch module registers its children and parameters.
class TreeBuilder {
 public:
  explicit TreeBuilder(const std::string& root_type) {
    tree_.modules.push_back({"", root_type, 0, {}, {}});
  }

  uint32_t module(uint32_t parent, const std::string& name, const std::string& type) {
    const auto index = static_cast<uint32_t>(tree_.modules.size());
    tree_.modules.push_back({qualified(parent, name), type, parent, {}, {}});
    tree_.modules[parent].children.push_back(index);
    return index;
  }

  uint32_t parameter(uint32_t module, const std::string& name, std::vector<int64_t> shape) {
    const auto index = static_cast<uint32_t>(tree_.parameters.size());
    const int64_t numel =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    tree_.parameters.push_back({qualified(module, name), std::move(shape), numel, module, {}});
    tree_.modules[module].parameters.push_back(index);
    return index;
  }

  // Makes `module`'s parameter `name` the same tensor as `parameter`, which another module owns.
  void tie(uint32_t module, const std::string& name, uint32_t parameter) {
    tree_.modules[module].parameters.push_back(parameter);
    tree_.parameters[parameter].aliases.push_back(qualified(module, name));
  }

  uint32_t linear(uint32_t parent, const std::string& name, int64_t in, int64_t out, bool bias) {
    const uint32_t index = module(parent, name, "Linear");
    parameter(index, "weight", {out, in});
    if (bias) {
      parameter(index, "bias", {out});
    }
    return index;
  }

  uint32_t conv1d(uint32_t parent, const std::string& name, int64_t in, int64_t out) {
    const uint32_t index = module(parent, name, "Conv1D");
    parameter(index, "weight", {in, out});
    parameter(index, "bias", {out});
    return index;
  }

  void layer_norm(uint32_t parent, const std::string& name, int64_t hidden) {
    const uint32_t index = module(parent, name, "LayerNorm");
    parameter(index, "weight", {hidden});
    parameter(index, "bias", {hidden});
  }

  void rms_norm(uint32_t parent, const std::string& name, int64_t hidden) {
    parameter(module(parent, name, "LlamaRMSNorm"), "weight", {hidden});
  }

  // Returns the index of its weight.
  uint32_t embedding(uint32_t parent, const std::string& name, int64_t rows, int64_t hidden) {
    return parameter(module(parent, name, "Embedding"), "weight", {rows, hidden});
  }

  void block(uint32_t module) { tree_.blocks.push_back(module); }
  ModuleTree take() { return std::move(tree_); }

 private:
  [[nodiscard]] std::string qualified(uint32_t module, const std::string& name) const {
    const std::string& prefix = tree_.modules[module].fqn;
    return prefix.empty() ? name : prefix + "." + name;
  }

  ModuleTree tree_;
};

}  // namespace shardlens::plan
