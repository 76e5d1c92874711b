#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/composable/module_state.h"
#include "core/fsdp/executor.h"
#include "core/fsdp/flat_param_handle.h"
#include "core/fsdp/fully_shard.h"
#include "core/module/hookable.h"
#include "core/schedule/ledger.h"
#include "core/schedule/schedule.h"

namespace shardlens::fsdp {

class Root;

// The state of one unit: what module_state(module) returns for each of its modules. Shared by
// modules sharded together.
class FsdpState : public composable::State {
 public:
  explicit FsdpState(UnitId unit) : unit_(unit) {}
  [[nodiscard]] UnitId unit() const { return unit_; }
  [[nodiscard]] bool is_root() const { return unit_ == 0; }
  // Null: the unit owns no parameters.
  [[nodiscard]] FlatParamHandle* handle() const { return handle_.get(); }
  void set_handle(std::unique_ptr<FlatParamHandle> handle) { handle_ = std::move(handle); }

 private:
  UnitId unit_;
  std::unique_ptr<FlatParamHandle> handle_;
};

// The state that manages `module` if that is an FSDP state, else null (PyTorch's
// _get_module_fsdp_state). As pure as module_state().
[[nodiscard]] inline std::shared_ptr<FsdpState> module_fsdp_state(const torch::nn::Module& module) {
  return composable::module_state_as<FsdpState>(module);
}

// The schedule's options for a plan run with `options`.
[[nodiscard]] schedule::ScheduleOptions options_of(const plan::ResolvedPlan& plan,
                                                   const Options& options);

// Joins hooks, schedule and executor of one sharded model. Turns forwards and autograd's callbacks
// into hook events, asks the schedule, lets the executor obey.
//
// Threads  the thread that trains; autograd runs CPU backward hooks on it too.
class Root : public ShardedModel, public std::enable_shared_from_this<Root> {
 public:
  Root(plan::ResolvedPlan plan,
       const Options& options,
       schedule::Schedule schedule,
       std::vector<std::shared_ptr<FsdpState>> states);

  // Called by the hooks of a unit's modules.
  void pre_forward(UnitId unit, module::TensorRefs& inputs);
  void post_forward(UnitId unit, module::TensorRefs& outputs);
  void grads_ready(UnitId unit);

  [[nodiscard]] const plan::ResolvedPlan& plan() const override { return plan_; }
  [[nodiscard]] std::span<const at::Tensor> flat_shards() const override { return shards_; }
  [[nodiscard]] std::vector<ParameterSlice> slices() const override;
  void set_requires_gradient_sync(bool sync) override;
  double clip_grad_norm(double max_norm, double norm_type) override;
  void zero_grad() override;
  void optimizer_done() override;
  [[nodiscard]] at::Tensor full_parameter(uint32_t parameter) override;
  void abort() override;
  [[nodiscard]] int64_t unsharded_bytes() const override;
  [[nodiscard]] const std::vector<std::shared_ptr<FsdpState>>& states() const { return states_; }

 private:
  // Where a unit is in the current forward and backward.
  struct Progress {
    uint32_t entered = 0;       // modules of the unit whose forward has begun in this invocation
    uint32_t left = 0;          // and ended
    uint32_t invocation = 0;    // forwards begun since the last backward ended
    bool pre_backward = false;  // raised since the last forward or reduction
  };

  void raise(const HookEvent& event);
  void execute(const schedule::Action& action, const HookEvent& event);
  void pre_backward(UnitId unit, uint32_t invocation);
  void backward_end();
  [[nodiscard]] std::string prefix() const;

  plan::ResolvedPlan plan_;
  Options options_;
  schedule::Schedule schedule_;
  std::vector<std::shared_ptr<FsdpState>> states_;
  std::vector<Progress> progress_;
  std::vector<at::Tensor> shards_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<schedule::Ledger> ledger_;
  bool in_backward_ = false;
  uint32_t gathered_unit_ = kNoUnit;  // whose whole flat parameter full_parameter() holds
  at::Tensor gathered_;
};

}  // namespace shardlens::fsdp
