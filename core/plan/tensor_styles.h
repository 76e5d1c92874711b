#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/plan/plan.h"
#include "core/tree/module_tree.h"

namespace shardlens::plan {

// How tensor parallelism divides modules if a plan does not say it (resolve_groups.cpp).

// The style that programs usually give to a module of this name and type. A plan without
// `tensor_parallel` gives it to every module.
[[nodiscard]] TensorStyle usual_style(const Module& module);
// The usual styles of all modules of the tree that are divided, as `tensor_parallel` has them.
[[nodiscard]] std::map<std::string, TensorStyle> usual_styles(const ModuleTree& tree);

// Whether the module is an embedding, whose rows are the vocabulary.
[[nodiscard]] bool is_embedding(const Module& module);

}  // namespace shardlens::plan
