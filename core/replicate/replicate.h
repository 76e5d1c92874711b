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
  std::string name;  // FQN from the module whose hooks drive the state
  at::Tensor tensor;
};

// Told of the Reducer's buckets as they are made and reduced. All calls on the thread that trains
// (backward hooks on CPU run there too).
class BucketObserver {
 public:
  virtual ~BucketObserver() = default;
  // Buckets have been made or made anew; of each, the parameters (indices into
  // ReplicateState::parameters()) in the order in which they lie in it.
  virtual void rebuilt(const std::vector<std::vector<uint32_t>>& buckets) = 0;
  // Bucket `index` is about to be reduced. Returns what its collectives are for.
  virtual dist::Purpose launch(size_t index) = 0;
  // Backward has nothing left to do but wait for all of them.
  virtual void wait() = 0;
};

struct Options {
  dist::World* world = nullptr;         // not owned; must outlive the state
  std::optional<double> bucket_cap_mb;  // none: 25, and 1 for the first bucket
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool gradient_as_bucket_view = false;
  bool broadcast_buffers = true;  // rank 0's buffers to all before each forward that will reduce
  std::shared_ptr<BucketObserver> observer;  // may be null
};

enum class BuiltinHook : uint8_t { kAllReduce, kFp16Compress };

// What replicate() keeps: the parameters of the modules that it marked, and c10d's Reducer over
// them, which decides about buckets and averages each while backward runs.
//
// The Reducer is made in the first forward. By then optimizers may hold the parameters, and
// fully_shard may have taken submodules over, which are left out. All ranks must hold parameters of
// the same shapes; they get rank 0's values, and its buffers.
//
// Threads  all calls on the thread that trains.
// Errors   UsageError naming parameters: shapes that differ between ranks; a backward in which some
//          got no gradient (raised by the next forward, as the Reducer finds it only then);
//          RuntimeFault for collectives.
// Source   torch/distributed/_composable/replicate.py, torch/nn/parallel/distributed.py, torch
//          2.11.
class ReplicateState : public composable::State {
 public:
  ReplicateState(Options options,
                 std::weak_ptr<torch::nn::Module> root,
                 std::function<std::vector<NamedParameter>()> collect);
  ~ReplicateState() override;

  // Whether the forwards from here on are followed by backwards that reduce (false: accumulate).
  void set_requires_gradient_sync(bool sync);
  // Replaces the averaging of a bucket; at most one hook, before the first backward. A hook given
  // before the first forward waits for the Reducer.
  void register_comm_hook(std::unique_ptr<c10d::CommHookInterface> hook);
  void register_comm_hook(BuiltinHook hook);

  // Empty before the first forward.
  [[nodiscard]] const std::vector<NamedParameter>& parameters() const;
  // Parameters of each bucket, in the order in which buckets are reduced; empty before the first
  // forward.
  [[nodiscard]] const std::vector<std::vector<uint32_t>>& buckets() const;
  // After an exception in forward or backward: forgets what the Reducer waits for.
  void abort();

  // Called by the hooks of the root.
  void pre_forward();
  void post_forward(module::TensorRefs& outputs);

  // States alive in this process, for tests.
  [[nodiscard]] static int64_t live();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

[[nodiscard]] const composable::Api& replicate_api();

// Replicates `module`: its parameters, without those of `ignored_modules` (all their descendants
// too), of submodules that fully_shard manages and of submodules that are replicated on their own.
// Errors  UsageError: replicated or fully sharded already; a container without forward; a module
//         without hooks (SHARDLENS_MODULE).
std::shared_ptr<ReplicateState> replicate(
    const std::shared_ptr<torch::nn::Module>& module,
    const Options& options,
    std::span<const std::shared_ptr<torch::nn::Module>> ignored_modules = {});

// Several modules below `root` (or it) under one Reducer that `root`'s hooks drive, with just the
// parameters given.
struct MarkedModule {
  std::string fqn;  // from root
  std::shared_ptr<torch::nn::Module> module;
};
std::shared_ptr<ReplicateState> replicate(const std::shared_ptr<torch::nn::Module>& root,
                                          std::span<const MarkedModule> modules,
                                          std::vector<NamedParameter> parameters,
                                          const Options& options);

}  // namespace shardlens::replicate
