#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/TensorBody.h>

#include "core/composable/registry.h"
#include "core/dist/communicator.h"
#include "core/module/hookable.h"

namespace c10d {
class CommHookInterface;
}
namespace shardlens::dist {
class World;
}

namespace shardlens::replicate {

// One parameter of a ReplicateState.
struct NamedParameter {
  std::string name;  // FQN relative to the module whose hooks call the state
  at::Tensor tensor;
};

// Gets notified when the Reducer creates and reduces its buckets. All calls are on the thread that
// trains (backward hooks on CPU run there too).
class BucketObserver {
 public:
  virtual ~BucketObserver() = default;
  // The Reducer created or rebuilt its buckets. `buckets`: the parameters of each bucket (indices
  // into ReplicateState::parameters()) in their order in the bucket.
  virtual void rebuilt(const std::vector<std::vector<uint32_t>>& buckets) = 0;
  // Bucket `index` is about to be reduced. Returns the purpose of its collectives.
  virtual dist::Purpose launch(size_t index) = 0;
  // Backward has computed everything and is about to wait for all reductions.
  virtual void wait() = 0;
};

struct Options {                        // as of DistributedDataParallel
  dist::World* world = nullptr;         // not owned; must outlive the state
  std::optional<double> bucket_cap_mb;  // nullopt: 25, and 1 for the first bucket
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool gradient_as_bucket_view = false;
  // Broadcast rank 0's buffers before each forward, except after one without gradient reduction.
  bool broadcast_buffers = true;
  std::shared_ptr<BucketObserver> observer;  // may be null
};

enum class BuiltinHook : uint8_t { kAllReduce, kFp16Compress };

// The state of replicate(): the parameters of the modules that it was applied to, and a c10d
// Reducer for them, which assigns them to buckets and averages each bucket while backward runs.
//
// The Reducer is created in the first forward. Optimizers may be given the parameters before that,
// and fully_shard may be applied to submodules, which are then excluded. All ranks must have
// parameters of the same shapes; they get rank 0's values and buffers.
//
// Threads  all calls on the thread that trains.
// Errors   UsageError naming parameters: shapes that differ between ranks; parameters without
//          gradient in a backward (thrown by the next forward, because the Reducer detects it only
//          then); RuntimeFault for collectives.
// Source   torch/distributed/_composable/replicate.py, torch/nn/parallel/distributed.py, torch
//          2.11.
class ReplicateState : public composable::State {
 public:
  ReplicateState(Options options,
                 std::weak_ptr<torch::nn::Module> root,
                 std::function<std::vector<NamedParameter>()> collect);
  ~ReplicateState() override;

  // Whether the backwards of later forwards reduce the gradients (false: only accumulate them).
  void set_requires_gradient_sync(bool sync);
  // Replaces the averaging of a bucket. At most one hook, before the first backward. If called
  // before the first forward, the hook is installed when the Reducer is created.
  void register_comm_hook(std::unique_ptr<c10d::CommHookInterface> hook);
  void register_comm_hook(BuiltinHook hook);

  // Empty before the first forward.
  [[nodiscard]] const std::vector<NamedParameter>& parameters() const;
  // The parameters of each bucket; buckets are in the order in which they are reduced. Empty before
  // the first forward.
  [[nodiscard]] const std::vector<std::vector<uint32_t>>& buckets() const;
  // Call after an exception in forward or backward: resets the Reducer, which may wait for
  // gradients.
  void abort();

  // Called by the hooks of the root.
  void pre_forward();
  void post_forward(module::TensorRefs& outputs);

  // Number of live states in this process, for tests.
  [[nodiscard]] static int64_t live();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

[[nodiscard]] const composable::Api& replicate_api();

// Replicates the parameters of `module`, except those of `ignored_modules` and their descendants,
// of submodules that fully_shard manages, and of submodules to which replicate() is applied
// separately.
// Errors  UsageError if the module is already replicated or fully sharded, is a container without
//         forward, or has no hooks (SHARDLENS_MODULE).
std::shared_ptr<ReplicateState> replicate(
    const std::shared_ptr<torch::nn::Module>& module,
    const Options& options,
    std::span<const std::shared_ptr<torch::nn::Module>> ignored_modules = {});

// Replicates several descendants of `root` (or `root` itself) with one Reducer that `root`'s hooks
// call. It reduces only the given parameters.
struct MarkedModule {
  std::string fqn;  // relative to root
  std::shared_ptr<torch::nn::Module> module;
};
std::shared_ptr<ReplicateState> replicate(const std::shared_ptr<torch::nn::Module>& root,
                                          std::span<const MarkedModule> modules,
                                          std::vector<NamedParameter> parameters,
                                          const Options& options);

}  // namespace shardlens::replicate
