#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/tree/module_tree.h"
#include "core/workload/workload.h"

namespace shardlens::plan {

// Index in ModuleTree::blocks of the block that `module` is or is in; -1: none.
class BlockOfModule {
 public:
  explicit BlockOfModule(const ModuleTree& tree);
  [[nodiscard]] int of(std::string_view module) const;

 private:
  std::vector<std::string> prefixes_;  // by block: its name and "."
};

// Sets Operator::launch, and the names of compiled kernels ("triton_…"), of a step under its
// software. With CUDA graphs: everything before the optimizer is one graph, as in torchtitan 0.3,
// whose wrapper captures forward and backward. With compile: each run of operators of one block in
// one phase is a call of compiled code, and so is the loss; without blocks of their own all of the
// model's are one.
void set_launches(const ModuleTree& tree, Workload& workload);

}  // namespace shardlens::plan
