#pragma once

#include <memory>
#include <unordered_set>

namespace torch::nn {
class Module;
}

namespace shardlens::composable {

// Marks every module of `module`'s tree (including itself; a shared module once) that is not in
// `ignored_modules` as managed by FSDP, with its `use_orig_params` setting. A later call overwrites
// the setting. The children of an ignored module are marked unless they are in the set too. The
// modules themselves do not change; a mark disappears with its module.
//
// Consumers   code that captures a module's forward (Dynamo in PyTorch) must read a managed
//             module's parameters again in every forward: with views that are made once, results
//             stay correct, but the order of the backward is fixed and its overlap with
//             communication is lost.
// Threads     any.
// Source      torch/distributed/fsdp/_dynamo_utils.py, torch 2.0.
void annotate_managed_modules(const std::shared_ptr<torch::nn::Module>& module,
                              const std::unordered_set<const torch::nn::Module*>& ignored_modules,
                              bool use_orig_params);

// These do not change or create anything.
[[nodiscard]] bool is_managed(const torch::nn::Module& module);
// False for modules that are not managed.
[[nodiscard]] bool managed_use_orig_params(const torch::nn::Module& module);

}  // namespace shardlens::composable
