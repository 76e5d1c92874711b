#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/tree/module_tree.h"

namespace shardlens::plan {

// Rules that a plan may contain instead of a glob; they choose units as PyTorch's auto-wrap
// policies do:
//   "class:NAME"   every module of that class (ModuleWrapPolicy)
//   "size:NUMEL"   bottom-up, every module with at least NUMEL parameters that are not in a unit
//                  chosen below it; not the root, and no container (size_based_auto_wrap_policy)
// Source  torch/distributed/fsdp/wrap.py, torch 2.11.
[[nodiscard]] bool is_wrap_policy(std::string_view text);

// Why `policy` is not a valid policy ("" if it is).
[[nodiscard]] std::string wrap_policy_problem(std::string_view policy);

// The modules that the policy chooses, in pre-order. `ignored`, by parameter index: these do not
// count towards NUMEL.
[[nodiscard]] std::vector<uint32_t> modules_of_policy(std::string_view policy,
                                                      const ModuleTree& tree,
                                                      const std::vector<bool>& ignored);

// ModuleList and ModuleDict, which have no forward.
[[nodiscard]] bool is_container(const Module& module);

}  // namespace shardlens::plan
