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

// Activation checkpointing of one forward. While this object exists, tensors that autograd would
// save for backward on this thread are not saved. When backward first needs one of them, `again`
// recomputes the forward up to the last operator that saves a tensor.
//
// [Note: Non-reentrant checkpointing] This is PyTorch's default. The autograd graph is that of the
// first forward: gradients flow, hooks run and views of parameters are released as without
// checkpointing, in one backward. So a unit may contain checkpoints, be one, or be inside one. The
// implementation needs autograd's default hooks for saved tensors. C++ has no setter for them, but
// they are a virtual function of autograd's engine, which can be replaced (Python replaces it the
// same way).
//
// Ownership  the graph keeps `again`, and with it the forward's inputs, until backward has ended.
// Threads    forward and backward on the thread that trains.
// Errors     UsageError naming the module if the recomputation differs from the first forward.
//            Random numbers (default generators of the CPU and of the thread's current device) and
//            autocast are the same as in the first forward.
// Source     torch/utils/checkpoint.py (_checkpoint_without_reentrant_generator), torch 2.11.
class CheckpointScope {
 public:
  // `fqn`: used in messages.
  CheckpointScope(std::string fqn, std::function<void()> again);
  ~CheckpointScope();
  CheckpointScope(const CheckpointScope&) = delete;
  CheckpointScope& operator=(const CheckpointScope&) = delete;

  class Region;

 private:
  std::shared_ptr<Region> region_;
  std::shared_ptr<Region> outer_;
};

// The API object that checkpoint() adds to the registry of modules.
[[nodiscard]] const composable::Api& checkpoint_api();

// Checkpoints every later forward of the module that runs with gradients enabled. Hooks of other
// APIs run outside the checkpointed part. Checkpoints may be nested; the inner one keeps its own
// inputs. Errors: UsageError for a module without hooks (SHARDLENS_MODULE), for a container without
// forward, and for a second call with the same module.
void checkpoint(const std::shared_ptr<torch::nn::Module>& module, const std::string& fqn = "");

// The modules that a plan checkpoints, with their FQNs. Errors: those of checkpoint(), thrown
// before any module is changed; UsageError if the model does not have one of the modules.
struct NamedModule {
  std::string fqn;
  std::shared_ptr<torch::nn::Module> module;
};
[[nodiscard]] std::vector<NamedModule> modules_to_checkpoint(
    const std::shared_ptr<torch::nn::Module>& model, const plan::ResolvedPlan& plan);

// Throws UsageError for a forward with arguments that cannot be copied or that it may change.
[[noreturn]] void refuse_checkpoint(const std::string& fqn);

}  // namespace shardlens::module
