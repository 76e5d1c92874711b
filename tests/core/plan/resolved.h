#pragma once

#include <string>

#include "core/base/error.h"
#include "core/model/model_config.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/tree/module_tree.h"

namespace shardlens::test {

inline const std::string kBlocksAndRoot = R"([{"modules": "model.layers.*"}, {"modules": ""}])";

inline plan::ModuleTree tree_of(const std::string& model) {
  return plan::module_tree(plan::load_model_config(std::string(SHARDLENS_TEST_DATA) + "/" + model));
}
inline plan::ModuleTree llama() {
  return tree_of("llama-tiny");
}

inline plan::ResolvedPlan resolved(const std::string& units,
                                   int64_t world,
                                   const plan::ModuleTree& tree,
                                   const std::string& more = "") {
  return plan::resolve(
      plan::parse_plan(R"({"version": 1, "units": )" + units + more + "}", "plan.json"), tree,
      world);
}

inline std::string error_of(const std::string& units,
                            int64_t world,
                            const plan::ModuleTree& tree,
                            const std::string& more = "") {
  try {
    (void)resolved(units, world, tree, more);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace shardlens::test
