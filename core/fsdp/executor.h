#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/recorder.h"
#include "core/dist/communicator.h"
#include "core/fsdp/device_streams.h"
#include "core/fsdp/flat_param_handle.h"
#include "core/schedule/action.h"

namespace shardlens::dist {
class World;
}

namespace shardlens::fsdp {

// Executes schedule actions on tensors and process groups. Obeys in order and decides nothing: what
// each op means stands in core/schedule/action.h. On a device, streams and events are one to one
// (DeviceStreams).
//
// [Note: CPU streams] The compute and copy-in streams are the calling thread. The all-gather and
// reduce-scatter streams are the communication thread of the shard axis (an all-gather over a
// sub-mesh runs on that one's), the all-reduce stream that of the replicate axis; each is FIFO.
// Waiting for an event on the compute stream blocks the host.
//
// Threads     the thread that trains.
// Errors      RuntimeFault from collectives and waits.
class Executor {
 public:
  // `handles` by UnitId, null where a unit owns no parameters; not owned.
  Executor(std::vector<FlatParamHandle*> handles, dist::World& world, Recorder* recorder);
  virtual ~Executor() = default;

  // `edges`: whether kUseFull gives the parameters their autograd edges.
  virtual void execute(const schedule::Action& action, bool edges);
  [[nodiscard]] uint32_t executed() const { return sequence_; }
  // Numbers and records an action, without executing it. Returns its number.
  uint32_t record(const schedule::Action& action);
  // Waits for everything issued so far, swallowing failures: the way out after an exception.
  void drain() noexcept;

 protected:
  struct Unit {
    FlatParamHandle* handle = nullptr;
    bool copied_in = false;
    at::Tensor unsharded_grad;  // taken from autograd, until freed
    at::Tensor reduce_input;
    bool accumulates = false;  // reduce_input holds gradients already: the next ones are added
    at::Tensor reduce_output;
    std::vector<bool> carried;  // what reduce_output has chunks of
    // Per kind of buffer, the stream that it was allocated on; autograd's gradients on compute.
    std::array<schedule::Stream, schedule::kBufferKindCount> allocated_on{};
    bool partial = false;  // reduce_output holds sums already: the next ones are added
  };

  // Hands the collective to the communication thread. Virtual, like execute(), so that tests can
  // plant a late executor.
  virtual void all_gather(const schedule::Action& action, Unit& unit);
  void record_event(const schedule::Action& action);

  uint32_t sequence_ = 0;  // of the action that is being executed, from 1

 private:
  [[nodiscard]] dist::Communicator& communicator(const schedule::Action& action) const;
  [[nodiscard]] dist::Communicator& communicator(schedule::Stream stream,
                                                 schedule::Axis axis) const;
  [[nodiscard]] dist::Purpose purpose(UnitId unit) const;
  void submitted(schedule::Stream stream, dist::Communicator& on, dist::CompletionPtr completion);
  void allocate(const schedule::Action& action, Unit& unit);
  // Gives memory back, once the streams that use it are through.
  void retire(const schedule::Action& action, const Unit& unit, std::shared_ptr<void> memory);
  void release(const schedule::Action& action, Unit& unit);
  void copy_out(const schedule::Action& action, Unit& unit);
  void reduce_copy_in(Unit& unit);
  void reduce_scatter(const schedule::Action& action, Unit& unit);
  void all_reduce(const schedule::Action& action, Unit& unit);
  void store_grad(const schedule::Action& action, Unit& unit);
  void wait_event(const schedule::Action& action);
  at::Tensor& gradient_of(const schedule::Action& action, Unit& unit);
  at::Tensor& divided_gradient_of(const schedule::Action& action, Unit& unit);

  struct Last {
    dist::CompletionPtr completion;
    dist::Communicator* on = nullptr;
  };
  std::vector<Unit> units_;
  dist::World& world_;
  Recorder* recorder_;
  Last last_[schedule::kStreamCount];    // last request issued on each stream
  std::vector<Last> events_;             // by EventId; no completion: complete when recorded
  std::optional<DeviceStreams> device_;  // none on CPU
};

}  // namespace shardlens::fsdp
