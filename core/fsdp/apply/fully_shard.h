#pragma once

#include <memory>
#include <vector>

#include "core/fsdp/run/fsdp_options.h"
#include "core/fsdp/run/sharded_model.h"
#include "core/plan/resolved_plan.h"

namespace torch::nn {
class Module;
}
namespace shardlens::composable {
struct Api;
}

namespace shardlens::fsdp {

// The API object that fully_shard adds to the registry of modules.
[[nodiscard]] const composable::Api& fully_shard_api();

// Shards `model` in place by `plan`, whose module tree must be the model's (names, shapes and order
// are checked). Parameter values are copied from the modules; the caller must fill a parameter
// without storage (models::Init::kNone) through slices(). Every unit's modules must be Hookable
// (SHARDLENS_MODULE); an error names one that is not. Parameters that do not require grad, in the
// module or in the plan, are frozen: they are gathered with their unit and get no gradient.
//
// Errors      UsageError naming module or parameter; InputError from plan::require_engine_support.
[[nodiscard]] std::shared_ptr<ShardedModel> fully_shard(
    const std::shared_ptr<torch::nn::Module>& model,
    const plan::ResolvedPlan& plan,
    const Options& options);

// The same for a user-defined model: the plan is resolved for the model's module tree and the world
// size. Parts that were sharded separately become units of this root; replicated parts are
// excluded.
[[nodiscard]] std::shared_ptr<ShardedModel> fully_shard(
    const std::shared_ptr<torch::nn::Module>& model,
    const plan::Plan& plan,
    const Options& options);

// Makes one unit of all parameters of the modules except those of units below them, so apply it
// bottom-up. Like PyTorch's fully_shard(module) and fully_shard([module, …]). `settings` is a plan
// whose units are ignored; its globs of ignored and frozen parts match FQNs relative to the module.
//
// The module whose forward runs first becomes the root of the units below it (lazy initialisation),
// which then share one schedule; units without a common root have separate roots.
// Errors  UsageError as in fully_shard. Also in the first forward of a root: if the forward of a
//         part has run separately before, if the root unit has several modules, or if mesh,
//         dialect, layout or views of units differ.
// Source  torch/distributed/fsdp/_fully_shard, FSDPState._lazy_init, torch 2.11.
void fully_shard_unit(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                      const plan::Plan& settings,
                      const Options& options);

// The model whose root is `module`. If the root is not determined yet, `module` becomes the root
// now, as in its first forward. Errors: UsageError for a module that is not a root.
[[nodiscard]] std::shared_ptr<ShardedModel> lazy_init(
    const std::shared_ptr<torch::nn::Module>& module);

}  // namespace shardlens::fsdp
