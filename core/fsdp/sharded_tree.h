#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace shardlens::fsdp {

// A sharded model as a person reads it.
struct ShardedTree {
  // One line per module, four spaces per level: "u1[UnitModule] FULLY SHARDED", "[Root]" for the
  // root; the words follow modules whose unit owns parameters.
  std::string text;
  // "u1[UnitModule]" to the FQNs, from the root, of the parameters that its unit owns, in flat
  // order; of modules sharded together the first has them.
  std::vector<std::pair<std::string, std::vector<std::string>>> parameters;
};

// `root` need not be sharded itself.
//
// Source      torch/distributed/fsdp/_debug_utils.py
//             (_get_sharded_module_tree_with_module_name_to_fqns).
[[nodiscard]] ShardedTree sharded_tree(const std::shared_ptr<torch::nn::Module>& root);

}  // namespace shardlens::fsdp
