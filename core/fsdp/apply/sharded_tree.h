#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace shardlens::fsdp {

// A readable description of a sharded model.
struct ShardedTree {
  // One line per module, with four spaces per level: "u1[UnitModule] FULLY SHARDED", "[Root]" for
  // the root. Only modules whose unit owns parameters have the words "FULLY SHARDED".
  std::string text;
  // "u1[UnitModule]" and the FQNs, relative to the root, of the parameters that its unit owns, in
  // flat order. For modules that are sharded together, only the first is listed.
  std::vector<std::pair<std::string, std::vector<std::string>>> parameters;
};

// `root` need not be sharded itself.
//
// Source      torch/distributed/fsdp/_debug_utils.py
//             (_get_sharded_module_tree_with_module_name_to_fqns).
[[nodiscard]] ShardedTree sharded_tree(const std::shared_ptr<torch::nn::Module>& root);

}  // namespace shardlens::fsdp
