#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ATen/core/TensorBody.h>

#include "core/tree/module_tree.h"

namespace torch::nn {
class Module;
}

namespace shardlens::module {

// The unsharded shape of a parameter: the tensor of a sharded parameter is only this rank's slice.
using ShapeOf = std::function<std::vector<int64_t>(const at::Tensor& parameter)>;

// The module tree of a live model, for plans of models that have no config.json. Blocks are the
// modules with hooks (SHARDLENS_MODULE) other than the root. A parameter that several modules
// register has the FQN of the first one; the other FQNs are its aliases.
[[nodiscard]] plan::ModuleTree tree_of(const torch::nn::Module& model,
                                       const ShapeOf& shape_of = {});

// The tree of one or several modules without the descendants for which `skipped` returns true. A
// single module is the tree's root; several are the children "0", "1", … of a root that is not a
// module. `parameters` has the same order as the tree's.
struct Subtree {
  plan::ModuleTree tree;
  std::vector<at::Tensor> parameters;
};
[[nodiscard]] Subtree subtree_of(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                                 const std::function<bool(const torch::nn::Module&)>& skipped);

// The model's modules by FQN; the model itself is "".
using ModulesByFqn = std::unordered_map<std::string, std::shared_ptr<torch::nn::Module>>;
[[nodiscard]] ModulesByFqn modules_by_fqn(const torch::nn::Module& model);

// The model's parameters in named_parameters() order, each tensor once, so that the indices are
// those of `tree.parameters`. Errors: UsageError that begins with "`api`: " and names the first
// parameter whose name or shape differs from the tree's.
[[nodiscard]] std::vector<at::Tensor> checked_parameters(const torch::nn::Module& model,
                                                         const plan::ModuleTree& tree,
                                                         std::string_view api,
                                                         const ShapeOf& shape_of = {});

// Makes a parameter frozen (requires_grad false) in both tree and model if it is frozen in one.
void share_frozen(plan::ModuleTree& tree, const std::vector<at::Tensor>& parameters);

// Sets the tree's dtypes to the model's: a plan made from a config has those of the engine.
void share_dtypes(plan::ModuleTree& tree, const std::vector<at::Tensor>& parameters);

}  // namespace shardlens::module
