#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/live_count.h"
#include "core/fsdp/executor.h"
#include "core/fsdp/fully_shard.h"
#include "core/fsdp/state.h"
#include "core/module/hookable.h"
#include "core/schedule/ledger.h"
#include "core/schedule/schedule.h"

namespace shardlens::fsdp {

// The schedule's options for a plan run with `options`.
[[nodiscard]] schedule::ScheduleOptions options_of(const plan::ResolvedPlan& plan,
                                                   const Options& options);

// Joins hooks, schedule and executor of one sharded model. Turns forwards and autograd's callbacks
// into hook events, asks the schedule, lets the executor obey.
//
// [Note: Exceptions] A forward that throws ends, and with the outermost one every unit is brought
// back to sharded while the exception leaves it; so it is with a backward, whose graph task dies
// without its final callback. Gradients stay as plain autograd would leave them, half done: reset
// them. Where the engine itself failed (a collective), nothing is cleaned up by itself: waiting for
// what is under way could only fail again. Hooks then refuse until abort().
//
// Threads  the thread that trains; autograd runs CPU backward hooks on it too.
class Root : public ShardedModel, public std::enable_shared_from_this<Root>, LiveCount<Root> {
 public:
  using LiveCount::live;
  Root(plan::ResolvedPlan plan,
       const Options& options,
       schedule::Schedule schedule,
       std::vector<std::shared_ptr<FsdpState>> states);

  // Called by the hooks of a unit's modules; `slot` counts the modules of the unit.
  void pre_forward(UnitId unit, size_t slot, module::TensorRefs& inputs);
  void post_forward(UnitId unit, size_t slot, module::TensorRefs& outputs);
  void forward_failed(UnitId unit, size_t slot) noexcept;
  void accumulated(UnitId unit);

  [[nodiscard]] const plan::ResolvedPlan& plan() const override { return plan_; }
  [[nodiscard]] std::span<const at::Tensor> flat_shards() const override { return shards_; }
  [[nodiscard]] std::vector<ParameterSlice> slices() const override;
  void materialize() override;
  void set_requires_gradient_sync(bool sync) override;
  void begin_microbatch(bool last) override;
  void set(UnitId unit, const schedule::Setting& setting, bool recurse);
  void set_gradient_divide_factor(UnitId unit, double factor);
  // `hook`: kUnshard, kWaitUnshard or kReshard.
  void unshard(UnitId unit, Hook hook);
  double clip_grad_norm(double max_norm, double norm_type) override;
  void zero_grad() override;
  void optimizer_done() override;
  [[nodiscard]] at::Tensor full_parameter(uint32_t parameter) override;
  void abort() override;
  uint32_t record_action(const schedule::Action& action) override {
    return executor_->record(action);
  }
  [[nodiscard]] int64_t unsharded_bytes() const override;
  [[nodiscard]] const std::vector<std::shared_ptr<FsdpState>>& states() const { return states_; }

 private:
  // Where a unit is in the current forward and backward.
  struct Progress {
    bool running = false;          // between its kPreForward and kPostForward
    std::vector<bool> open, done;  // by module: its forward is on the stack; has ended
    bool refused = false;          // the forward that is failing never began
    bool inputs_require_grad = false, outputs_require_grad = false;
    uint32_t invocation = 0;  // forwards ended since the last backward ended
    bool reduced_at_end = false;
    bool pre_backward = false;  // raised since the last forward or reduction
  };
  class Backward;  // lives as long as autograd's task of a backward

  double clip_on_device(const std::vector<at::Tensor>& grads, double max_norm, double norm_type);
  void raise(const HookEvent& event);
  void perform(const schedule::ActionList& actions, const HookEvent& event);
  void execute(const schedule::Action& action, const HookEvent& event);
  void make_views(UnitId unit);
  [[nodiscard]] bool casts_inputs(UnitId unit) const;
  void recompute(UnitId unit, Hook hook);
  void begin_forward(UnitId unit, const HookEvent& event);
  void end_forward(UnitId unit, bool grad_mode);
  void pre_backward(UnitId unit, uint32_t invocation);
  void grads_ready(UnitId unit);
  void use_ended(UnitId unit);
  void frozen_use_ended(UnitId unit);
  void require_materialized();
  void require_frozen_as_sharded() const;
  void backward_end();
  void reset_progress();
  [[nodiscard]] std::string prefix() const;

  plan::ResolvedPlan plan_;
  Options options_;
  schedule::Schedule schedule_;
  std::vector<std::shared_ptr<FsdpState>> states_;
  std::vector<Progress> progress_;
  std::vector<at::Tensor> shards_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<schedule::Ledger> ledger_;
  UnitId forward_root_ = kNoUnit;  // whose forward began first and is running
  bool in_backward_ = false;
  bool materialized_ = false;         // every shard has storage
  bool faulted_ = false;              // an action failed; only abort() helps
  uint32_t gathered_unit_ = kNoUnit;  // whose whole flat parameter full_parameter() holds
  at::Tensor gathered_;
};

}  // namespace shardlens::fsdp
