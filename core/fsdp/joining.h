#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/composable/contract.h"
#include "core/fsdp/fully_shard.h"
#include "core/fsdp/state.h"

namespace shardlens::fsdp {

// What the ways into fully_shard have in common: a plan's units are sharded and joined at once,
// those applied one by one are joined by the forward that finds the root.

// That fully_shard can be applied to the module. Errors: UsageError: a container without forward,
// no hooks, sharded or replicated already.
void require_shardable(const std::shared_ptr<torch::nn::Module>& module, const std::string& fqn);

// Gives `state` to the modules of unit `id` by the contract, and shards their parameters
// (`parameters` by index of plan.tree).
void shard_unit(const std::shared_ptr<FsdpState>& state,
                const plan::ResolvedPlan& plan,
                UnitId id,
                const composable::Modules& modules,
                const std::vector<at::Tensor>& parameters,
                const Options& options);

// Hooks of a unit's modules and of its gradients, which find the root through `state`.
void register_hooks(const std::shared_ptr<FsdpState>& state, const composable::Modules& modules);

// Whether nothing of the module is for FSDP to manage: all its parameters are ignored, and neither
// it nor a module below has a buffer.
//
// Source      _ignore_module, torch/distributed/fsdp/_fully_shard.
[[nodiscard]] bool is_ignored(const torch::nn::Module& module,
                              const std::unordered_set<const c10::TensorImpl*>& ignored);

// Marks the modules under `module` that an FSDP state manages; parameters stay registered under
// their own names (use_orig_params).
void mark_managed(const std::shared_ptr<torch::nn::Module>& module);

// Shards `model` by `plan` and joins its units. `adopted`, by unit: the state of a unit that was
// applied by itself before, or null.
[[nodiscard]] std::shared_ptr<Root> join_units(const std::shared_ptr<torch::nn::Module>& model,
                                               plan::ResolvedPlan plan,
                                               const Options& options,
                                               std::vector<std::shared_ptr<FsdpState>> adopted);

// A plan with an entry for each part of a model that has its own API already: units applied by
// themselves, and replicated modules.
struct Parts {
  plan::Plan plan;
  std::vector<std::shared_ptr<FsdpState>> states;  // by entry of the plan; null: none as yet
};
// Errors: UsageError for a part that has run by itself, and for settings that differ.
[[nodiscard]] Parts parts_of(const std::shared_ptr<torch::nn::Module>& model,
                             const plan::Plan& plan);

// Resolves a plan against a model that may have such parts, and joins them.
[[nodiscard]] std::shared_ptr<Root> join_parts(const std::shared_ptr<torch::nn::Module>& model,
                                               const plan::Plan& plan,
                                               const Options& options);

// Makes the module of a unit that was applied by itself, and whose forward begins, the root.
void init_root(const FsdpState& state);

}  // namespace shardlens::fsdp
