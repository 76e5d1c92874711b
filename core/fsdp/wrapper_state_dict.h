#pragma once

#include <string>

#include <ATen/core/TensorBody.h>
#include <torch/ordered_dict.h>

namespace torch::nn {
class Module;
}

namespace shardlens::fsdp {

using StateDict = torch::OrderedDict<std::string, at::Tensor>;

// The key that the state dict of a FlattenParamsWrapper at `prefix` ("" or ending in a dot) has for
// `key`: "<prefix>_fpw_module.x" becomes "<prefix>x", all others stay.
[[nodiscard]] std::string cleaned_key(const std::string& key, const std::string& prefix);

// The way back: "<prefix>x" becomes "<prefix>_fpw_module.x", but a key whose last part starts with
// "flat_param" is the wrapper's own. Errors: UsageError for a key that only begins like one.
[[nodiscard]] std::string prefixed_key(const std::string& key, const std::string& prefix);

// Parameters and buffers of the module and all below it in nn.Module.state_dict()'s order, with the
// wrappers' prefixes removed. The tensors are not copied. Errors: UsageError if two of them get one
// key.
[[nodiscard]] StateDict state_dict(const torch::nn::Module& module);

// Copies values into the module by key; every key must be there with its shape, and no other.
// Errors: UsageError naming the keys, before anything is copied.
void load_state_dict(torch::nn::Module& module, const StateDict& values);

}  // namespace shardlens::fsdp
