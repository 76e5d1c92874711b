#pragma once

#include <memory>

#include "core/plan/module_tree.h"

namespace torch::nn {
class Module;
}

namespace shardlens::module {

// The module tree of a live model, for plans over models that have no config.json. Blocks are the
// modules with hooks (SHARDLENS_MODULE) other than the root. A parameter registered by several
// modules is listed at its first owner, later ones as aliases.
[[nodiscard]] plan::ModuleTree tree_of(const torch::nn::Module& model);

}  // namespace shardlens::module
