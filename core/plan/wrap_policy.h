#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan/module_tree.h"

namespace shardlens::plan {

// Rules that may stand where a glob does, as PyTorch's auto-wrap policies choose units:
//   "class:NAME"   every module of that class (ModuleWrapPolicy)
//   "size:NUMEL"   bottom-up every module with at least so many parameters that no module below it
//                  took; not the root, and no container (size_based_auto_wrap_policy)
// Source  torch/distributed/fsdp/wrap.py, torch 2.11.
[[nodiscard]] bool is_wrap_policy(std::string_view text);

// Why `policy` cannot be one ("" if it can).
[[nodiscard]] std::string wrap_policy_problem(std::string_view policy);

// Pre-order. Parameters that are `ignored` (by index) do not count.
[[nodiscard]] std::vector<uint32_t> modules_of_policy(std::string_view policy,
                                                      const ModuleTree& tree,
                                                      const std::vector<bool>& ignored);

// ModuleList and ModuleDict, which have no forward.
[[nodiscard]] bool is_container(const Module& module);

}  // namespace shardlens::plan
