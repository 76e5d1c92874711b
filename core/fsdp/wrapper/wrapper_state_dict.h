#pragma once

#include <string>

#include <ATen/core/TensorBody.h>
#include <torch/ordered_dict.h>

namespace torch::nn {
class Module;
}

namespace shardlens::fsdp {

using StateDict = torch::OrderedDict<std::string, at::Tensor>;

// The key for `key` in the state dict of a FlattenParamsWrapper at `prefix` ("" or ending in a
// dot):
// "<prefix>_fpw_module.x" becomes "<prefix>x", all others do not change.
[[nodiscard]] std::string cleaned_key(const std::string& key, const std::string& prefix);

// The inverse: "<prefix>x" becomes "<prefix>_fpw_module.x", except keys whose last part starts with
// "flat_param", which belong to the wrapper. Errors: UsageError for a key that starts with
// "flat_param" after the prefix, but whose last part does not.
[[nodiscard]] std::string prefixed_key(const std::string& key, const std::string& prefix);

// Parameters and buffers of the module and its descendants, in the order of nn.Module.state_dict(),
// without the wrappers' prefixes. The tensors are not copied. Errors: UsageError if two tensors get
// the same key.
[[nodiscard]] StateDict state_dict(const torch::nn::Module& module);

// Copies values into the module by key. The keys and shapes must be exactly those of the module.
// Errors: UsageError naming the keys, before anything is copied.
void load_state_dict(torch::nn::Module& module, const StateDict& values);

}  // namespace shardlens::fsdp
