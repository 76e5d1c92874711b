#pragma once

#include <memory>
#include <unordered_set>

namespace torch::nn {
class Module;
}

namespace shardlens::composable {

// Marks every module of `module`'s tree (itself included, a shared one once) that is not in
// `ignored_modules` as managed by FSDP, with the setting it was built with. A later call overwrites
// the setting. An ignored module does not exclude its children: only those in the set are skipped.
// Nothing on the modules themselves changes; the marks die with them.
//
// Consumers   whoever captures a module's forward (Dynamo in PyTorch) must take a managed module's
//             parameters anew in every forward: views that are made once keep results right, but
//             fix the order of the backward and lose its overlap with communication.
// Threads     any.
// Source      torch/distributed/fsdp/_dynamo_utils.py, torch 2.0.
void annotate_managed_modules(const std::shared_ptr<torch::nn::Module>& module,
                              const std::unordered_set<const torch::nn::Module*>& ignored_modules,
                              bool use_orig_params);

// Pure getters.
[[nodiscard]] bool is_managed(const torch::nn::Module& module);
// False for modules that are not managed.
[[nodiscard]] bool managed_use_orig_params(const torch::nn::Module& module);

}  // namespace shardlens::composable
