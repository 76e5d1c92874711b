#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/composable/contract.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/fsdp/run/state.h"

namespace shardlens::fsdp {

// Functions shared by fully_shard and fully_shard_unit: the units of a plan are sharded and joined
// at once; units that are applied one by one are joined in the forward that determines the root.

// Checks that fully_shard can be applied to the module. Errors: UsageError if it is a container
// without forward, has no hooks, or is already sharded or replicated.
void require_shardable(const std::shared_ptr<torch::nn::Module>& module, const std::string& fqn);

// Checks that the parameters of unit `id` can be sharded together: one dtype that can be trained,
// on the world's device, not sharded yet. Errors: UsageError naming a parameter.
void require_parameters(const plan::ResolvedPlan& plan,
                        UnitId id,
                        const std::vector<at::Tensor>& parameters,
                        const Options& options);

// Applies fully_shard with `state` to the modules of unit `id`, and shards their parameters
// (`parameters` by index of plan.tree).
void shard_unit(const std::shared_ptr<FsdpState>& state,
                const plan::ResolvedPlan& plan,
                UnitId id,
                const composable::Modules& modules,
                const std::vector<at::Tensor>& parameters,
                const Options& options);

// Registers the hooks of a unit's modules and gradients. They get the root from `state`.
void register_hooks(const std::shared_ptr<FsdpState>& state, const composable::Modules& modules);

// Whether FSDP has nothing to manage in the module: all its parameters are ignored, and neither it
// nor a descendant has a buffer.
//
// Source      _ignore_module, torch/distributed/fsdp/_fully_shard.
[[nodiscard]] bool is_ignored(const torch::nn::Module& module,
                              const std::unordered_set<const c10::TensorImpl*>& ignored);

// Marks the modules in `module`'s tree that an FSDP state manages as managed, with use_orig_params:
// parameters stay registered under their own names.
void mark_managed(const std::shared_ptr<torch::nn::Module>& module);

// Shards `model` by `plan` and joins its units. `adopted`, by unit: the state of a unit that was
// sharded separately before, or null.
[[nodiscard]] std::shared_ptr<Root> join_units(const std::shared_ptr<torch::nn::Module>& model,
                                               plan::ResolvedPlan plan,
                                               const Options& options,
                                               std::vector<std::shared_ptr<FsdpState>> adopted);

// A plan with an entry for each part of a model that an API was already applied to: units that were
// sharded separately, and replicated modules.
struct Parts {
  plan::Plan plan;
  std::vector<std::shared_ptr<FsdpState>> states;  // by entry of the plan; null: not sharded yet
};
// Errors: UsageError for a part whose forward has run separately, and for settings that differ.
[[nodiscard]] Parts parts_of(const std::shared_ptr<torch::nn::Module>& model,
                             const plan::Plan& plan);

// Resolves a plan for a model that may have such parts, and joins them.
[[nodiscard]] std::shared_ptr<Root> join_parts(const std::shared_ptr<torch::nn::Module>& model,
                                               const plan::Plan& plan,
                                               const Options& options);

// Makes the module of a unit that was sharded separately the root. Called when its forward begins.
void init_root(const FsdpState& state);

}  // namespace shardlens::fsdp
