#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "core/base/live_count.h"
#include "core/fsdp/run/gathered_parameters.h"
#include "core/fsdp/run/gradient_clip.h"
#include "core/fsdp/run/microbatch_shadow.h"
#include "core/fsdp/run/root_units.h"
#include "core/fsdp/run/sharded_model.h"
#include "core/fsdp/run/summon_options.h"
#include "core/module/hookable.h"
#include "core/schedule/ledger.h"
#include "core/schedule/schedule.h"

namespace shardlens::fsdp {

// The schedule's options for a plan run with `options`.
[[nodiscard]] schedule::ScheduleOptions options_of(const plan::ResolvedPlan& plan,
                                                   const Options& options);

// The schedule's units; one with an AllGatherExtension copies in and out in every layout.
[[nodiscard]] std::vector<schedule::UnitSpec> specs_of(
    const plan::ResolvedPlan& plan, const std::vector<std::shared_ptr<FsdpState>>& states);

// Connects hooks, schedule and executor of one sharded model: converts forwards and autograd's
// callbacks to hook events, gets the schedule's actions for them, and passes these to the executor.
//
// [Note: Exceptions] When a forward throws, its unit's forward ends; when the exception leaves the
// outermost forward, every unit is resharded. The same is done for a backward that throws: its
// graph task is destroyed without its final callback. As in plain autograd, some gradients may be
// incomplete, so reset them. After a failure of the engine itself (a collective), nothing is
// cleaned up automatically, because a wait for pending work could fail again. Hooks then throw
// until abort() is called. Gradients of earlier backwards without sync are kept when a forward
// throws, and their parameters show zeros as their gradient until the reduction: the program may go
// on, or reset the gradients and begin the step again.
//
// Threads  the thread that trains. Autograd runs backward hooks on it, on a device on a thread of
//          its own, for which the thread that trains waits. If a backward fails there, nothing is
//          cleaned up on autograd's thread, which may be late: the training thread does so at its
//          next call.
class Root : public ShardedModel, public std::enable_shared_from_this<Root>, LiveCount<Root> {
 public:
  using LiveCount::live;
  Root(plan::ResolvedPlan plan,
       const Options& options,
       schedule::Schedule schedule,
       std::vector<std::shared_ptr<FsdpState>> states);

  // Called by the hooks of a unit's modules; `slot` is the index of the module within the unit.
  void pre_forward(UnitId unit, size_t slot, module::TensorRefs& inputs);
  void post_forward(UnitId unit, size_t slot, module::TensorRefs& outputs);
  void forward_failed(UnitId unit, size_t slot) noexcept;
  void accumulated(UnitId unit);

  [[nodiscard]] const plan::ResolvedPlan& plan() const override { return units_.plan(); }
  [[nodiscard]] const std::vector<std::shared_ptr<FsdpState>>& states() const {
    return units_.states();
  }
  [[nodiscard]] std::span<const at::Tensor> flat_shards() const override { return units_.shards(); }
  [[nodiscard]] std::vector<ParameterSlice> slices() const override;
  void materialize() override { units_.materialize(); }
  void set_requires_gradient_sync(bool sync) override;
  void begin_microbatch(bool last) override;
  void set_optimizer_in_backward(OptimizerInBackward optimizer) override;
  void set(UnitId unit, const schedule::Setting& setting, bool recurse);
  void set_gradient_divide_factor(UnitId unit, double factor) {
    units_.set_gradient_divide_factor(unit, factor);
  }
  // `hook`: kUnshard, kWaitUnshard or kReshard.
  void unshard(UnitId unit, Hook hook);
  // The scope FullParameters.
  void summon(const std::vector<UnitId>& units, const SummonOptions& options);
  void end_summon(const std::vector<UnitId>& units, bool writeback) {
    gathered_.hide(units, writeback);
  }
  at::Tensor issue_clip_grad_norm(double max_norm, double norm_type) override;
  void zero_grad() override;
  void optimizer_done() override;
  [[nodiscard]] at::Tensor full_parameter(uint32_t parameter) override;
  void abort() override;
  void remember_microbatches() override { shadow_.remember_from_now_on(); }
  [[nodiscard]] bool can_shadow() const override { return !shadow_.empty(); }
  void shadow_microbatch() override;
  void divide_gradients_by(int64_t ranks) override;
  uint32_t record_action(const schedule::Action& action) override {
    return units_.executor().record(action);
  }
  void free_finished() override { units_.executor().free_finished(); }
  [[nodiscard]] int64_t unsharded_bytes() const override { return units_.unsharded_bytes(); }

 private:
  // The state of a unit in the current forward and backward.
  struct Progress {
    bool running = false;          // between its kPreForward and kPostForward
    std::vector<bool> open, done;  // by module: its forward runs; its forward has ended
    bool refused = false;          // pre_forward() rejected the call, so its forward did not begin
    bool inputs_require_grad = false, outputs_require_grad = false;
    uint32_t invocation = 0;  // number of forwards ended since the last backward ended
    bool reduced_at_end = false;
    bool pre_backward = false;  // kPreBackward was raised since the last forward or reduction
    bool watched = false;       // the inputs of a forward have hooks that end a frozen unit's use
  };
  class Backward;  // exists as long as autograd's graph task of a backward

  [[nodiscard]] dist::World& world() const override { return units_.world(); }
  // Cleans up after a backward that failed on another thread. Called first by what the thread that
  // trains calls.
  void settle();

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
  void no_more_gradients(UnitId unit);
  void drop_stale(UnitId unit);
  void note_kept();
  void hide_unsharded();
  void backward_end();
  void finish_backward();
  void reset_progress();

  RootUnits units_;
  schedule::Schedule schedule_;
  std::unique_ptr<schedule::Ledger> ledger_;
  std::vector<Progress> progress_;
  std::vector<bool> full_before_;  // per unit: was unsharded before the outermost forward
  UnitId forward_root_ = kNoUnit;  // the unit of the outermost running forward
  bool in_backward_ = false;
  std::thread::id trainer_;       // the thread of the last forward
  bool last_backward_ = true;     // set_is_last_backward()
  bool syncs_ = true;             // set_requires_gradient_sync()
  bool announces_steps_ = false;  // the program calls optimizer_done()
  bool faulted_ = false;          // an action failed; abort() must be called
  GradientClip clip_{units_};
  MicrobatchShadow shadow_{units_};
  GatheredParameters gathered_{units_};
};

}  // namespace shardlens::fsdp
