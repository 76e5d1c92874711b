#include "core/tree/wrap_policy.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

namespace shardlens::plan {
namespace {

constexpr std::string_view kClass = "class:", kSize = "size:";
// size_based_auto_wrap_policy.FORCE_LEAF_MODULES: such a module may be a unit, modules inside it
// not.
constexpr std::string_view kLeaf = "MultiheadAttention";

std::optional<int64_t> size_of(std::string_view policy) {
  const std::string_view text = policy.substr(kSize.size());
  int64_t numel = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), numel);
  return error == std::errc{} && stop == text.data() + text.size() && numel > 0
             ? std::optional(numel)
             : std::nullopt;
}

struct BySize {
  const ModuleTree& tree;
  const std::vector<bool>& ignored;
  int64_t smallest;
  std::vector<uint32_t> chosen;

  [[nodiscard]] int64_t numel_below(uint32_t module) const {
    int64_t numel = 0;
    for (const uint32_t parameter : tree.subtree_parameters(module)) {
      numel += ignored[parameter] ? 0 : tree.parameters[parameter].numel;
    }
    return numel;
  }

  // Returns the number of elements in the chosen units. Same as PyTorch's _recursive_wrap.
  int64_t wrap(uint32_t index) {
    const Module& module = tree.modules[index];
    const int64_t all = numel_below(index);
    if (all < smallest) {
      return 0;
    }
    int64_t taken = 0;
    for (const uint32_t child : module.children) {
      taken += module.type == kLeaf ? 0 : wrap(child);
    }
    if (index == 0 || is_container(module) || all - taken < smallest) {
      return taken;
    }
    chosen.push_back(index);
    return all;
  }
};

}  // namespace

bool is_wrap_policy(std::string_view text) {
  return text.starts_with(kClass) || text.starts_with(kSize);
}

std::string wrap_policy_problem(std::string_view policy) {
  if (policy == kClass) {
    return "'class:' has no class name; expected one, such as 'class:LlamaDecoderLayer'";
  }
  if (policy.starts_with(kSize) && !size_of(policy)) {
    return fmt::format("'{}': expected a number of parameters, such as 'size:100000000'", policy);
  }
  return "";
}

std::vector<uint32_t> modules_of_policy(std::string_view policy,
                                        const ModuleTree& tree,
                                        const std::vector<bool>& ignored) {
  if (policy.starts_with(kSize)) {
    BySize by_size{tree, ignored, size_of(policy).value_or(1), {}};
    by_size.wrap(0);
    std::sort(by_size.chosen.begin(), by_size.chosen.end());
    return by_size.chosen;
  }
  std::vector<uint32_t> found;
  for (uint32_t i = 0; i < tree.modules.size(); ++i) {
    if (tree.modules[i].type == policy.substr(kClass.size())) {
      found.push_back(i);
    }
  }
  return found;
}

bool is_container(const Module& module) {
  return module.type == "ModuleList" || module.type == "ModuleDict";
}

}  // namespace shardlens::plan
