#pragma once

#include <string>

namespace torch::nn {
class Module;
}

namespace shardlens::composable {

// The name a person knows a module's class by, as Python's type(module).__name__: "Linear" for
// torch::nn::LinearImpl, "Block" for Hookable<app::BlockImpl>.
[[nodiscard]] std::string class_name(const torch::nn::Module& module);

// How messages call a module: "'layers.0' (Block)", "the root (Mlp)" without FQN.
[[nodiscard]] std::string described(const torch::nn::Module& module, const std::string& fqn);

}  // namespace shardlens::composable
