#pragma once

#include <string>

namespace torch::nn {
class Module;
}

namespace shardlens::composable {

// The class name of a module as users write it, like Python's type(module).__name__: "Linear" for
// torch::nn::LinearImpl, "Block" for Hookable<app::BlockImpl>.
[[nodiscard]] std::string class_name(const torch::nn::Module& module);

// A module's name in messages: "'layers.0' (Block)"; with an empty FQN "the root (Mlp)".
[[nodiscard]] std::string described(const torch::nn::Module& module, const std::string& fqn);

}  // namespace shardlens::composable
