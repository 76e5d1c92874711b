#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ATen/core/TensorBody.h>

#include "core/plan/module_tree.h"

namespace torch::nn {
class Module;
}

namespace shardlens::module {

// The shape that a parameter has as a whole: a sharded one shows this rank's slice only.
using ShapeOf = std::function<std::vector<int64_t>(const at::Tensor& parameter)>;

// The module tree of a live model, for plans over models that have no config.json. Blocks are the
// modules with hooks (SHARDLENS_MODULE) other than the root. A parameter registered by several
// modules is listed at its first owner, later ones as aliases.
[[nodiscard]] plan::ModuleTree tree_of(const torch::nn::Module& model,
                                       const ShapeOf& shape_of = {});

// One or several modules without what is below those that `skipped`: a single one is the tree's
// root, several are the children "0", "1", … of a root that is no module. `parameters` by index of
// the tree's.
struct Subtree {
  plan::ModuleTree tree;
  std::vector<at::Tensor> parameters;
};
[[nodiscard]] Subtree subtree_of(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                                 const std::function<bool(const torch::nn::Module&)>& skipped);

// The model's modules, itself as "".
using ModulesByFqn = std::unordered_map<std::string, std::shared_ptr<torch::nn::Module>>;
[[nodiscard]] ModulesByFqn modules_by_fqn(const torch::nn::Module& model);

// The model's parameters in named_parameters() order, each tensor once: index as in
// `tree`.parameters. Errors: UsageError, after "`api`: ", naming the first whose name or shape is
// not the tree's.
[[nodiscard]] std::vector<at::Tensor> checked_parameters(const torch::nn::Module& model,
                                                         const plan::ModuleTree& tree,
                                                         std::string_view api,
                                                         const ShapeOf& shape_of = {});

// What the tree or the model says is frozen, both say then.
void share_frozen(plan::ModuleTree& tree, const std::vector<at::Tensor>& parameters);

}  // namespace shardlens::module
