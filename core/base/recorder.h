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

// Ranges that a unit opens on the host; names follow PyTorch FSDP2 ("FSDP::pre_forward
// (model.layers.3)").
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

// One collective as its communication thread ran it; with `on_device`, as the host issued it to a
// stream of a device.
struct CollectiveRecord {
  CollectiveKind kind = CollectiveKind::kAllGather;
  DType dtype = DType::kF32;
  UnitId unit = kNoUnit;  // kNoUnit: not of a unit (loss, gradient norm, barrier)
  uint32_t sequence = 0;  // per communicator, from 0 in issue order: the n-th collective of a group
                          // is the same on all ranks
  uint32_t action = 0;    // seq of the action that issued it; 0 for none
  int32_t group_size = 1;
  int64_t in_nelems = 0;
  int64_t out_nelems = 0;
  // `issued` <= `start` <= `end`: the host called, the communication thread began and ended. With
  // `on_device` the host's call: `issued` = `start`, and `end` when it returned.
  Nanoseconds issued = 0;
  Nanoseconds start = 0;
  Nanoseconds end = 0;
  std::string_view group;  // process group name, e.g. "shard"; valid for the process's life
  bool emulated = false;
  // A stream runs it, and kernels that this thread launched between `start` and `end` are its own:
  // what records the device gives them these arguments by correlation. Reported once the call has
  // returned, on the thread that made it.
  bool on_device = false;
};

// Sink for what the engine does; the profiler implements it, and a null implementation is used when
// nothing records. The implementation stamps host times itself on entry. Threads: collective() from
// any thread; everything else on the thread that trains (backward hooks on CPU run there too) or
// serialised with it, as autograd's thread of a device is; a range begins and ends on one thread.
// Errors: never throws; what cannot be kept is counted as dropped.
class Recorder {
 public:
  virtual ~Recorder() = default;

  // FQN of each unit, once before the first step; index = UnitId; the root's is "".
  virtual void units(std::span<const std::string> fqns) = 0;
  virtual void step_begin(int64_t step) = 0;
  virtual void step_end() = 0;
  // Before the schedule is asked; returns the seq by which actions refer to it.
  virtual uint32_t hook(const HookEvent& event) = 0;
  // As each action is executed, in order. `seq` counts actions since the start of the run, from 1.
  virtual void action(uint32_t seq, const schedule::Action& action) = 0;
  virtual void range_begin(Range range, UnitId unit) = 0;
  virtual void range_end() = 0;
  virtual void collective(const CollectiveRecord& record) = 0;
};

// Records nothing; a base for recorders that want only some of it.
class NullRecorder : public Recorder {
 public:
  void units(std::span<const std::string> /*fqns*/) override {}
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
