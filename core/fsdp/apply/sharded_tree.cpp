#include "core/fsdp/apply/sharded_tree.h"

#include <unordered_map>
#include <unordered_set>

#include <torch/nn/module.h>

#include "core/composable/class_name.h"
#include "core/fsdp/apply/traversal.h"
#include "core/fsdp/run/state.h"

namespace shardlens::fsdp {
namespace {

struct Printer {
  ShardedTree tree;
  std::unordered_map<const c10::TensorImpl*, std::string> fqns;  // first name of every parameter
  std::unordered_set<const FlatParamHandle*> listed;

  void print(const torch::nn::Module& module, const std::string& fqn, size_t level) {
    const std::string name = fqn + "[" + composable::class_name(module) + "]";
    tree.text += std::string(4 * level, ' ') + name;
    const auto state = is_fully_sharded(module) ? module_fsdp_state(module) : nullptr;
    if (state != nullptr && state->handle() != nullptr) {
      tree.text += " FULLY SHARDED";
      if (listed.insert(state->handle()).second) {
        tree.parameters.emplace_back(name, std::vector<std::string>());
        for (const FlatParamHandle::Slot& slot : state->handle()->slots()) {
          tree.parameters.back().second.push_back(fqns[slot.parameter.unsafeGetTensorImpl()]);
        }
      }
    }
    tree.text += "\n";
    for (const auto& child : module.named_children()) {
      print(*child.value(), fqn.empty() ? child.key() : fqn + "." + child.key(), level + 1);
    }
  }
};

}  // namespace

ShardedTree sharded_tree(const std::shared_ptr<torch::nn::Module>& root) {
  Printer printer;
  for (const auto& each : root->named_parameters()) {
    printer.fqns.emplace(each.value().unsafeGetTensorImpl(), each.key());
  }
  printer.print(*root, "", 0);
  return std::move(printer.tree);
}

}  // namespace shardlens::fsdp
