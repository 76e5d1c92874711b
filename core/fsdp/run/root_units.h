#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/dist/communicator.h"
#include "core/fsdp/run/executor.h"
#include "core/fsdp/run/fsdp_options.h"
#include "core/fsdp/run/sharded_model.h"
#include "core/fsdp/run/state.h"
#include "core/plan/resolved_plan.h"

namespace shardlens::fsdp {

// The units of one sharded model, with the executor of their actions: what the classes that run the
// model share, and what is done to all units at once.
//
// Threads  the thread that trains.
class RootUnits {
 public:
  struct WithParameters {
    UnitId unit;
    FlatParamHandle& handle;
  };

  // `states` by UnitId; each has its handle.
  RootUnits(plan::ResolvedPlan plan,
            const Options& options,
            std::vector<std::shared_ptr<FsdpState>> states);

  [[nodiscard]] const plan::ResolvedPlan& plan() const { return plan_; }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] dist::World& world() const { return *options_.world; }
  [[nodiscard]] Recorder* recorder() const { return options_.recorder; }
  [[nodiscard]] const std::vector<std::shared_ptr<FsdpState>>& states() const { return states_; }
  // Null if the unit owns no parameters.
  [[nodiscard]] FlatParamHandle* handle(UnitId unit) const { return states_[unit]->handle(); }
  [[nodiscard]] std::span<const WithParameters> with_parameters() const { return parameters_; }
  [[nodiscard]] std::span<const at::Tensor> shards() const { return shards_; }
  [[nodiscard]] Executor& executor() const { return *executor_; }
  // The group over which the parameters are sharded.
  [[nodiscard]] dist::Communicator& shard_group() const;
  [[nodiscard]] std::string prefix() const;  // "[rank 0] ", of every message

  // As in ShardedModel.
  [[nodiscard]] std::vector<ParameterSlice> slices() const;
  void materialize();
  void zero_grad();
  void values_written();
  [[nodiscard]] int64_t unsharded_bytes() const;
  void set_gradient_divide_factor(UnitId unit, double factor);
  void divide_gradients_by(int64_t ranks);

  void adopt_user_grads();
  // Errors  UsageError, which names the parameters: without storage; frozen or unfrozen since they
  //         were sharded; used by the current backward while they were sharded.
  void require_materialized();
  void require_frozen_as_sharded() const;
  void require_no_stray_use() const;

 private:
  plan::ResolvedPlan plan_;
  Options options_;
  std::vector<std::shared_ptr<FsdpState>> states_;
  std::vector<WithParameters> parameters_;
  std::vector<at::Tensor> shards_;
  std::unique_ptr<Executor> executor_;
  double gradient_share_ = 1;  // divide_gradients_by(), of the world size
  bool materialized_ = false;  // every shard has storage
};

}  // namespace shardlens::fsdp
