#include "core/module/tree_of.h"

#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <c10/util/accumulate.h>
#include <torch/nn/module.h>

#include "core/base/error.h"
#include "core/composable/class_name.h"
#include "core/module/hookable.h"
#include "core/module/scalar_type.h"

namespace shardlens::module {
namespace {

std::vector<int64_t> whole_shape(const at::Tensor& parameter, const ShapeOf& shape_of) {
  return shape_of ? shape_of(parameter) : parameter.sizes().vec();
}

struct Builder {
  ShapeOf shape_of;
  std::function<bool(const torch::nn::Module&)> skipped;
  plan::ModuleTree tree;
  std::vector<at::Tensor> parameters;
  std::unordered_map<const c10::TensorImpl*, uint32_t> known;

  void add(const torch::nn::Module& module, const std::string& fqn, uint32_t parent) {
    const auto index = static_cast<uint32_t>(tree.modules.size());
    tree.modules.push_back({fqn, composable::class_name(module), parent, {}, {}});
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
        parameter.shape = whole_shape(each.value(), shape_of);
        parameter.numel = c10::multiply_integers(parameter.shape);
        parameter.module = index;
        parameter.requires_grad = each.value().requires_grad();
        parameter.dtype = trainable_dtype(each.value().scalar_type()).value_or(DType::kF32);
        tree.parameters.push_back(std::move(parameter));
        parameters.push_back(each.value());
      } else {
        tree.parameters[found->second].aliases.push_back(prefix + each.key());
      }
      tree.modules[index].parameters.push_back(found->second);
    }
    for (const auto& child : module.named_children()) {
      if (!skipped || !skipped(*child.value())) {
        add(*child.value(), prefix + child.key(), index);
      }
    }
  }
};

}  // namespace

plan::ModuleTree tree_of(const torch::nn::Module& model, const ShapeOf& shape_of) {
  Builder builder{shape_of, {}, {}, {}, {}};
  builder.add(model, "", 0);
  return std::move(builder.tree);
}

Subtree subtree_of(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                   const std::function<bool(const torch::nn::Module&)>& skipped) {
  Builder builder{{}, skipped, {}, {}, {}};
  if (modules.size() == 1) {
    builder.add(*modules.front(), "", 0);
  } else {
    builder.tree.modules.emplace_back();
    for (size_t i = 0; i < modules.size(); ++i) {
      builder.add(*modules[i], std::to_string(i), 0);
    }
  }
  return {std::move(builder.tree), std::move(builder.parameters)};
}

ModulesByFqn modules_by_fqn(const torch::nn::Module& model) {
  ModulesByFqn modules;
  for (const auto& each : model.named_modules()) {
    modules[each.key()] = each.value();
  }
  return modules;
}

std::vector<at::Tensor> checked_parameters(const torch::nn::Module& model,
                                           const plan::ModuleTree& tree,
                                           std::string_view api,
                                           const ShapeOf& shape_of) {
  std::vector<at::Tensor> parameters;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& each : model.named_parameters()) {
    if (!seen.insert(each.value().unsafeGetTensorImpl()).second) {
      continue;
    }
    const size_t index = parameters.size();
    if (index >= tree.parameters.size()) {
      throw UsageError(
          fmt::format("{}: the model has parameter '{}', which is not in the plan's module tree",
                      api, each.key()));
    }
    const plan::Parameter& expected = tree.parameters[index];
    const std::vector<int64_t> shape = whole_shape(each.value(), shape_of);
    if (each.key() != expected.fqn || shape != expected.shape) {
      throw UsageError(fmt::format(
          "{}: parameter {} of the model is '{}' [{}], but the plan's module tree has '{}' [{}]",
          api, index, each.key(), fmt::join(shape, ", "), expected.fqn,
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

void share_frozen(plan::ModuleTree& tree, const std::vector<at::Tensor>& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!tree.parameters[i].requires_grad) {
      parameters[i].set_requires_grad(false);
    }
    tree.parameters[i].requires_grad = parameters[i].requires_grad();
  }
}

void share_dtypes(plan::ModuleTree& tree, const std::vector<at::Tensor>& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::ScalarType type = parameters[i].scalar_type();
    tree.parameters[i].dtype = trainable_dtype(type).value_or(DType::kF32);
  }
}

}  // namespace shardlens::module
