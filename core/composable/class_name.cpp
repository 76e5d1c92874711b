#include "core/composable/class_name.h"

#include <string_view>

#include <torch/nn/module.h>

namespace shardlens::composable {

std::string class_name(const torch::nn::Module& module) {
  std::string_view name = module.name();
  constexpr std::string_view kWrapper = "::Hookable<";
  if (const size_t wrapper = name.find(kWrapper); wrapper != std::string_view::npos) {
    name = name.substr(wrapper + kWrapper.size());
    name = name.substr(0, name.rfind('>'));
  }
  // Qualifiers end at the last "::" outside template arguments.
  const size_t arguments = name.find('<');
  if (const size_t colon = name.substr(0, arguments).rfind("::"); colon != std::string_view::npos) {
    name = name.substr(colon + 2);
  }
  constexpr std::string_view kSuffix = "Impl";
  if (name.size() > kSuffix.size() && name.ends_with(kSuffix)) {
    name.remove_suffix(kSuffix.size());
  }
  return std::string(name);
}

std::string described(const torch::nn::Module& module, const std::string& fqn) {
  return fqn.empty() ? "the root (" + class_name(module) + ")"
                     : "'" + fqn + "' (" + class_name(module) + ")";
}

}  // namespace shardlens::composable
