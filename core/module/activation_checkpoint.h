#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}
namespace shardlens::composable {
struct Api;
}
namespace shardlens::plan {
struct ResolvedPlan;
}

namespace shardlens::module {

// Activation checkpointing of one forward: while this lives, on its thread, tensors that autograd
// would keep for backward are dropped. When backward first asks for one of them `again` runs the
// forward once more, up to the last operator that keeps something, and they are there.
//
// [Note: Non-reentrant checkpointing] As PyTorch's default. The graph is the one that the forward
// made: gradients flow, hooks fire and views of parameters end as without it, in one backward, so a
// unit may hold checkpoints, be one, or lie in one. What has to be done for it is autograd's
// default hooks of saved tensors, for which C++ has no setter; but they are a virtual function of
// autograd's engine, and the engine may be replaced (Python's is put in place the same way).
//
// Ownership  the graph keeps `again`, and with it the forward's inputs, until backward is through.
// Threads    forward and backward on the thread that trains.
// Errors     UsageError naming the module if the forward does not do the same again. Random numbers
//            are those of the first time (default generator of the CPU).
// Source     torch/utils/checkpoint.py (_checkpoint_without_reentrant_generator), torch 2.11.
class CheckpointScope {
 public:
  // `fqn` is for messages.
  CheckpointScope(std::string fqn, std::function<void()> again);
  ~CheckpointScope();
  CheckpointScope(const CheckpointScope&) = delete;
  CheckpointScope& operator=(const CheckpointScope&) = delete;

  class Region;

 private:
  std::shared_ptr<Region> region_;
  std::shared_ptr<Region> outer_;
};

// What checkpoint() leaves in the registry of modules.
[[nodiscard]] const composable::Api& checkpoint_api();

// From now on every forward of the module with gradients enabled is checkpointed, inside the hooks
// of whatever else was applied to it. A checkpoint inside another runs, and keeps its own inputs.
// Errors: UsageError for a module without hooks (SHARDLENS_MODULE), a container without forward,
// and the second time.
void checkpoint(const std::shared_ptr<torch::nn::Module>& module, const std::string& fqn = "");

// The modules that a plan checkpoints, with their FQNs. Errors: as checkpoint(), for any of them,
// before the first is changed; UsageError for one that the model has not.
struct NamedModule {
  std::string fqn;
  std::shared_ptr<torch::nn::Module> module;
};
[[nodiscard]] std::vector<NamedModule> modules_to_checkpoint(
    const std::shared_ptr<torch::nn::Module>& model, const plan::ResolvedPlan& plan);

// For a forward whose arguments cannot be copied, and so not be kept.
[[noreturn]] void refuse_checkpoint(const std::string& fqn);

}  // namespace shardlens::module
