#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/TensorBody.h>

#include "core/plan/module_tree.h"

namespace torch::nn {
class Module;
}

namespace shardlens::module {

// The module tree of a live model, for plans over models that have no config.json. Blocks are the
// modules with hooks (SHARDLENS_MODULE) other than the root. A parameter registered by several
// modules is listed at its first owner, later ones as aliases.
[[nodiscard]] plan::ModuleTree tree_of(const torch::nn::Module& model);

// The model's parameters in named_parameters() order, each tensor once: index as in
// `tree`.parameters. Errors: UsageError, after "`api`: ", naming the first whose name or shape is
// not the tree's.
[[nodiscard]] std::vector<at::Tensor> checked_parameters(const torch::nn::Module& model,
                                                         const plan::ModuleTree& tree,
                                                         std::string_view api);

}  // namespace shardlens::module
