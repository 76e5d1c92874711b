#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/base/collective.h"
#include "core/base/dtype.h"
#include "core/base/hook.h"
#include "core/base/units.h"

namespace shardlens {

namespace schedule {
struct Action;
}

// Ranges that the engine opens on the host. The names follow PyTorch FSDP2
// ("FSDP::pre_forward (model.layers.3)").
enum class Range : uint8_t {
  kRootPreForward,       // FSDP::root_pre_forward
  kPreForward,           // FSDP::pre_forward (fqn)
  kAllGather,            // FSDP::all_gather (fqn)
  kAllGatherCopyOut,     // FSDP::all_gather_copy_out (fqn)
  kPostForward,          // FSDP::post_forward (fqn)
  kPreBackward,          // FSDP::pre_backward (fqn)
  kPostBackwardReshard,  // FSDP::post_backward_reshard (fqn)
  kPostBackwardReduce,   // FSDP::post_backward_reduce (fqn)
  kRootPostBackward,     // FSDP::root_post_backward_callback
  kOptimizer,            // Optimizer.step
  kForward,              // shardlens::forward
  kBackward,             // shardlens::backward
  kClip,                 // shardlens::clip_grad_norm
};
inline constexpr int kRangeCount = 13;
[[nodiscard]] std::string_view name_of(Range range);
[[nodiscard]] bool names_unit(Range range);  // whether " (fqn)" follows the name

// One collective as its communication thread ran it or, with `on_device`, as the host issued it to
// a stream of a device.
struct CollectiveRecord {
  CollectiveKind kind = CollectiveKind::kAllGather;
  DType dtype = DType::kF32;
  UnitId unit = kNoUnit;  // kNoUnit: belongs to no unit (loss, gradient norm, barrier)
  uint32_t sequence = 0;  // per communicator, from 0 in issue order: the n-th collective of a group
                          // is the same one on all ranks
  uint32_t action = 0;    // seq of the action that issued it; 0 for none
  int32_t group_size = 1;
  int64_t in_nelems = 0;
  int64_t out_nelems = 0;
  // `issued` <= `start` <= `end`: times at which the host called, and at which the communication
  // thread began and ended. With `on_device`: `issued` and `start` are when the host called, `end`
  // when that call returned.
  Nanoseconds issued = 0;
  Nanoseconds start = 0;
  Nanoseconds end = 0;
  std::string_view group;  // process group name, e.g. "shard"; valid until the process ends
  bool emulated = false;
  // A device stream runs the collective. The kernels that this thread launched between `start` and
  // `end` belong to it: the device's recorder gives them these arguments by correlation id. The
  // record is reported after the call has returned, on the thread that made the call.
  bool on_device = false;
};

// Receives what the engine does. The profiler implements it; a null implementation is used when
// nothing is recorded. The implementation reads the host clock on entry. Threads: collective() from
// any thread; everything else on the thread that trains (backward hooks on CPU run there too) or
// serialised with it, as autograd's device thread is; a range begins and ends on the same thread.
// Errors: never throws; records that cannot be stored are counted as dropped.
class Recorder {
 public:
  virtual ~Recorder() = default;

  // FQN of each unit, indexed by UnitId; the root's is "". Called once, before the first step.
  virtual void units(std::span<const std::string> fqns) = 0;
  // Name of each process group of the plan, indexed by Action::group. Called once, as units().
  virtual void groups(std::span<const std::string> names) = 0;
  virtual void step_begin(int64_t step) = 0;
  virtual void step_end() = 0;
  // Called before the schedule handles the event; returns the seq by which actions refer to it.
  virtual uint32_t hook(const HookEvent& event) = 0;
  // Called as each action is executed, in order. `seq` counts actions from the start of the run,
  // from 1.
  virtual void action(uint32_t seq, const schedule::Action& action) = 0;
  virtual void range_begin(Range range, UnitId unit) = 0;
  virtual void range_end() = 0;
  virtual void collective(const CollectiveRecord& record) = 0;
};

// Records nothing; a base for recorders that need only some of the calls.
class NullRecorder : public Recorder {
 public:
  void units(std::span<const std::string> /*fqns*/) override {}
  void groups(std::span<const std::string> /*names*/) override {}
  void step_begin(int64_t /*step*/) override {}
  void step_end() override {}
  uint32_t hook(const HookEvent& /*event*/) override { return 0; }
  void action(uint32_t /*seq*/, const schedule::Action& /*action*/) override {}
  void range_begin(Range /*range*/, UnitId /*unit*/) override {}
  void range_end() override {}
  void collective(const CollectiveRecord& /*record*/) override {}
};

// Opens a range for a scope; does nothing when `recorder` is null.
class RangeScope {
 public:
  RangeScope(Recorder* recorder, Range range, UnitId unit = kNoUnit) : recorder_(recorder) {
    if (recorder_ != nullptr) {
      recorder_->range_begin(range, unit);
    }
  }
  ~RangeScope() {
    if (recorder_ != nullptr) {
      recorder_->range_end();
    }
  }
  RangeScope(const RangeScope&) = delete;
  RangeScope& operator=(const RangeScope&) = delete;

 private:
  Recorder* recorder_;
};

}  // namespace shardlens
