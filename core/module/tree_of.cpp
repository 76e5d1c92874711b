#include "core/module/tree_of.h"

#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <torch/nn/module.h>

#include "core/base/error.h"
#include "core/module/hookable.h"

namespace shardlens::module {
namespace {

struct Builder {
  plan::ModuleTree tree;
  std::unordered_map<const c10::TensorImpl*, uint32_t> known;

  void add(const torch::nn::Module& module, const std::string& fqn, uint32_t parent) {
    const auto index = static_cast<uint32_t>(tree.modules.size());
    tree.modules.push_back({fqn, module.name(), parent, {}, {}});
    if (index != parent) {
      tree.modules[parent].children.push_back(index);
      if (dynamic_cast<const HookPoint*>(&module) != nullptr) {
        tree.blocks.push_back(index);
      }
    }
    const std::string prefix = fqn.empty() ? "" : fqn + ".";
    for (const auto& each : module.named_parameters(/*recurse=*/false)) {
      const auto [found, fresh] = known.emplace(each.value().unsafeGetTensorImpl(),
                                                static_cast<uint32_t>(tree.parameters.size()));
      if (fresh) {
        plan::Parameter parameter;
        parameter.fqn = prefix + each.key();
        parameter.shape = each.value().sizes().vec();
        parameter.numel = each.value().numel();
        parameter.module = index;
        tree.parameters.push_back(std::move(parameter));
      } else {
        tree.parameters[found->second].aliases.push_back(prefix + each.key());
      }
      tree.modules[index].parameters.push_back(found->second);
    }
    for (const auto& child : module.named_children()) {
      add(*child.value(), prefix + child.key(), index);
    }
  }
};

}  // namespace

plan::ModuleTree tree_of(const torch::nn::Module& model) {
  Builder builder;
  builder.add(model, "", 0);
  return std::move(builder.tree);
}

std::vector<at::Tensor> checked_parameters(const torch::nn::Module& model,
                                           const plan::ModuleTree& tree,
                                           std::string_view api) {
  std::vector<at::Tensor> parameters;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& each : model.named_parameters()) {
    if (!seen.insert(each.value().unsafeGetTensorImpl()).second) {
      continue;
    }
    const size_t index = parameters.size();
    if (index >= tree.parameters.size()) {
      throw UsageError(
          fmt::format("{}: the model has parameter '{}', which the plan's module tree has not", api,
                      each.key()));
    }
    const plan::Parameter& expected = tree.parameters[index];
    if (each.key() != expected.fqn || each.value().sizes() != at::IntArrayRef(expected.shape)) {
      throw UsageError(fmt::format(
          "{}: parameter {} of the model is '{}' [{}], the plan's module tree has '{}' [{}]", api,
          index, each.key(), fmt::join(each.value().sizes(), ", "), expected.fqn,
          fmt::join(expected.shape, ", ")));
    }
    parameters.push_back(each.value());
  }
  if (parameters.size() != tree.parameters.size()) {
    throw UsageError(fmt::format("{}: the model lacks parameter '{}'", api,
                                 tree.parameters[parameters.size()].fqn));
  }
  return parameters;
}

}  // namespace shardlens::module
