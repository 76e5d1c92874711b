#include "core/fsdp/wrapper/wrapper_state_dict.h"

#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "core/base/error.h"
#include "core/fsdp/wrapper/flatten_params_wrapper.h"

namespace shardlens::fsdp {
namespace {

const std::string& module_prefix() {
  static const std::string prefix = std::string(FlattenedModule::kModule) + ".";
  return prefix;
}

struct Entry {
  std::string name;  // as in named_parameters()
  at::Tensor value;
};

// Collects own parameters, own buffers, then those of the children, as nn.Module.state_dict() does.
void collect(const torch::nn::Module& module,
             const std::string& prefix,
             std::vector<Entry>& entries,
             std::vector<std::string>& wrappers) {
  if (dynamic_cast<const FlattenedModule*>(&module) != nullptr) {
    wrappers.push_back(prefix);
  }
  for (const auto& each : module.named_parameters(/*recurse=*/false)) {
    entries.push_back({prefix + each.key(), each.value()});
  }
  for (const auto& each : module.named_buffers(/*recurse=*/false)) {
    entries.push_back({prefix + each.key(), each.value()});
  }
  for (const auto& child : module.named_children()) {
    collect(*child.value(), prefix + child.key() + ".", entries, wrappers);
  }
}

}  // namespace

std::string cleaned_key(const std::string& key, const std::string& prefix) {
  const std::string old = prefix + module_prefix();
  return key.starts_with(old) ? prefix + key.substr(old.size()) : key;
}

std::string prefixed_key(const std::string& key, const std::string& prefix) {
  if (!key.starts_with(prefix)) {
    return key;
  }
  const std::string rest = key.substr(prefix.size());
  if (!rest.starts_with(FlattenedModule::kFlatParam)) {
    return prefix + module_prefix() + rest;
  }
  const std::string last = rest.substr(rest.rfind('.') + 1);
  if (!last.starts_with(FlattenedModule::kFlatParam)) {
    throw UsageError("Expected key to contain flat_param, but key name is " + key);
  }
  return prefix + last;
}

StateDict state_dict(const torch::nn::Module& module) {
  std::vector<Entry> entries;
  std::vector<std::string> wrappers;
  collect(module, "", entries, wrappers);
  StateDict result;
  for (const Entry& entry : entries) {
    std::string key = entry.name;
    for (auto wrapper = wrappers.rbegin(); wrapper != wrappers.rend(); ++wrapper) {
      key = cleaned_key(key, *wrapper);  // nested wrappers first
    }
    if (result.contains(key)) {
      throw UsageError(fmt::format("state_dict: '{}' and another tensor both get the key '{}'",
                                   entry.name, key));
    }
    result.insert(std::move(key), entry.value.detach());
  }
  return result;
}

void load_state_dict(torch::nn::Module& module, const StateDict& values) {
  std::vector<Entry> entries;
  std::vector<std::string> wrappers;
  collect(module, "", entries, wrappers);
  StateDict raw;
  for (const auto& each : values) {
    std::string key = each.key();
    for (const std::string& wrapper : wrappers) {
      key = prefixed_key(key, wrapper);
    }
    raw.insert(std::move(key), each.value());
  }
  std::vector<std::string> missing;
  std::unordered_set<std::string> known;
  for (const Entry& entry : entries) {
    known.insert(entry.name);
    const at::Tensor* value = raw.find(entry.name);
    if (value == nullptr) {
      missing.push_back(entry.name);
    } else if (value->sizes() != entry.value.sizes()) {
      throw UsageError(fmt::format("load_state_dict: '{}' has shape [{}], the module's has [{}]",
                                   entry.name, fmt::join(value->sizes(), ", "),
                                   fmt::join(entry.value.sizes(), ", ")));
    }
  }
  std::vector<std::string> unexpected = raw.keys();
  std::erase_if(unexpected, [&](const std::string& key) { return known.contains(key); });
  if (!missing.empty() || !unexpected.empty()) {
    throw UsageError(fmt::format("load_state_dict: missing keys [{}], unexpected keys [{}]",
                                 fmt::join(missing, ", "), fmt::join(unexpected, ", ")));
  }
  const at::NoGradGuard no_grad;
  for (Entry& entry : entries) {
    entry.value.copy_(raw[entry.name]);
  }
}

}  // namespace shardlens::fsdp
