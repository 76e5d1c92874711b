#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/fsdp/run/state.h"

namespace torch::nn {
class Module;
}

namespace shardlens::fsdp {

// Whether a traversal may enter the module: no API that excludes FSDP was applied to it.
[[nodiscard]] bool composes_with_fsdp(const torch::nn::Module& module);
[[nodiscard]] bool is_fully_sharded(const torch::nn::Module& module);

// The FSDP states in `root`'s tree, each with its first module, depth-first in modules() order.
// States and shared modules occur once; the subtree of a replicate()d module (or root) is skipped.
// Source: torch/distributed/fsdp/_traversal_utils.py.
struct StateWithModule {
  std::shared_ptr<FsdpState> state;
  std::shared_ptr<torch::nn::Module> module;
};
[[nodiscard]] std::vector<StateWithModule> fsdp_states_with_modules(
    const std::shared_ptr<torch::nn::Module>& root);
[[nodiscard]] std::vector<std::shared_ptr<FsdpState>> fsdp_states(
    const std::shared_ptr<torch::nn::Module>& root);
[[nodiscard]] std::vector<std::shared_ptr<FsdpState>> fsdp_root_states(
    const std::shared_ptr<torch::nn::Module>& root);
// The handles of these states; states without parameters have none.
[[nodiscard]] std::vector<FlatParamHandle*> fsdp_handles(
    const std::shared_ptr<torch::nn::Module>& root);

}  // namespace shardlens::fsdp
