#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/recorder.h"
#include "core/dist/communicator.h"
#include "core/fsdp/run/collectives.h"
#include "core/fsdp/run/device_streams.h"
#include "core/fsdp/unit/flat_param_handle.h"
#include "core/mesh/mesh.h"
#include "core/plan/resolved_plan.h"
#include "core/schedule/action.h"

namespace shardlens::dist {
class World;
}

namespace shardlens::fsdp {

// Executes schedule actions on tensors and process groups, in order and without own decisions.
// core/schedule/action.h defines each op. On a device, each stream and event is one of the device
// (DeviceStreams).
//
// [Note: CPU streams] The compute and copy-in streams are the calling thread. The other streams are
// the communication threads of groups: the all-gather and reduce-scatter streams that of the shard
// group (a gather over a sub-mesh, that of the sub-mesh; reduce-scatters, that of their own group
// if the plan has one), the all-reduce stream that of the replicate group; each is FIFO. A wait for
// an event on the compute stream blocks the host.
//
// Threads     the thread that trains.
// Errors      RuntimeFault from collectives and waits.
class Executor {
 public:
  // `handles` by UnitId, null for units without parameters; not owned.
  Executor(std::vector<FlatParamHandle*> handles, dist::World& world, Recorder* recorder);
  virtual ~Executor() = default;

  // Creates the communicators of a plan's groups (plan::ResolvedPlan::groups). Before the first
  // action; on all ranks.
  void use_groups(std::span<const mesh::Group> groups);
  // `edges`: whether kUseFull sets the autograd edges of the parameters.
  virtual void execute(const schedule::Action& action, bool edges);
  // Updates a unit's shard in backward. Called for kStep, in the place of its stream.
  using Step = std::function<void(UnitId unit, FlatParamHandle& handle)>;
  void set_step(Step step) { step_ = std::make_shared<const Step>(std::move(step)); }
  [[nodiscard]] bool has_step() const { return step_ != nullptr; }
  // Makes the thread's current stream the compute stream until the next call. Call it before the
  // actions of every hook but a gradient accumulator's: autograd runs that one on the stream that
  // was current when the unit was sharded.
  void enter();
  void set_collectives(std::shared_ptr<Collectives> collectives) {
    collectives_ = std::move(collectives);
    gathers_parts_ = false;
  }
  [[nodiscard]] uint32_t executed() const { return sequence_; }
  // Numbers and records an action, without executing it. Returns its number.
  uint32_t record(const schedule::Action& action);
  // Makes gradients that were stored so far safe to read: the host (on a device, the compute
  // stream; for gradients on the host, the host) waits for the streams that store them.
  void settle();
  // CPU offload: the host waits until no copy to the device reads a shard any more. `all`: until
  // the device has finished, which frees what it still uses; an optimizer on the host waits for
  // nearly all of it anyway.
  void finish_copies(bool all);
  // ShardedModel::free_finished().
  void free_finished();
  // By slot: whether the parameter has a gradient that is not reduced yet. forget_unreduced()
  // replaces such gradients by zeros.
  [[nodiscard]] std::vector<bool> unreduced(UnitId unit) const;
  void forget_unreduced(UnitId unit, const std::vector<size_t>& slots);
  // Waits for all issued work and ignores its failures: for the cleanup after an exception. `keep`:
  // does not drop gradients that are not reduced yet.
  void drain(bool keep) noexcept;

 protected:
  struct Unit {
    FlatParamHandle* handle = nullptr;
    bool copied_in = false;
    bool reads_shard = false;   // instead of copying it in, the all-gather will
    at::Tensor unsharded_grad;  // taken from autograd, until freed
    // Autograd's gradients that a copy-in on another stream reads, until kUnshardedGrad is freed.
    std::vector<at::Tensor> read_elsewhere;
    std::optional<uint64_t> copied_out;  // DeviceStreams::now() of the last read of kGathered
    at::Tensor reduce_input;
    bool accumulates = false;  // reduce_input contains gradients: the next ones are added to it
    at::Tensor reduce_output;
    std::vector<bool> carried;  // parameters whose chunks are in reduce_output
    // By kind of buffer: the stream that it was allocated on; for autograd's gradients, compute.
    std::array<schedule::Stream, schedule::kBufferKindCount> allocated_on{};
    bool partial = false;  // reduce_output contains sums: the next ones are added to it
    // Gradients that are being copied to the host, and the event after each copy.
    struct ToHost {
      at::Tensor values;
      std::vector<bool> carried;
      schedule::EventId event = schedule::kNoEvent;
    };
    std::vector<ToHost> to_host;
  };

  // Submits the collective to the communicator. Virtual, like execute(), so that tests can use an
  // executor that delays it.
  virtual void all_gather(const schedule::Action& action, Unit& unit);
  void record_event(const schedule::Action& action);

  uint32_t sequence_ = 0;  // number of the action that is being executed, from 1

 private:
  // The communicator of the action's group or, without one, of its stream ([Note: CPU streams]).
  [[nodiscard]] dist::Communicator& communicator(const schedule::Action& action) const;
  [[nodiscard]] dist::Purpose purpose(UnitId unit) const;
  void submitted(schedule::Stream stream, dist::Communicator& on, dist::CompletionPtr completion);
  void allocate(const schedule::Action& action, Unit& unit);
  // Frees memory after the streams that use it have finished with it.
  void retire(const schedule::Action& action, const Unit& unit, std::shared_ptr<void> memory);
  void release(const schedule::Action& action, Unit& unit);
  void copy_in(const schedule::Action& action, Unit& unit);
  void copy_out(const schedule::Action& action, Unit& unit);
  void reduce_copy_in(const schedule::Action& action, Unit& unit);
  void reduce_scatter(const schedule::Action& action, Unit& unit);
  void all_reduce(const schedule::Action& action, Unit& unit);
  at::Tensor& reduced_gradient(const schedule::Action& action, Unit& unit);
  void store_grad(const schedule::Action& action, Unit& unit);
  void step(const schedule::Action& action, Unit& unit);
  void to_host(const schedule::Action& action, Unit& unit);
  // Stores the gradients whose copies to the host `event` covers; kNoEvent: all.
  static void store_copied(Unit& unit, schedule::EventId event);
  void wait_event(const schedule::Action& action);
  at::Tensor& gradient_of(const schedule::Action& action, Unit& unit);
  at::Tensor& divided_gradient_of(const schedule::Action& action, Unit& unit);

  struct Last {
    dist::CompletionPtr completion;
    dist::Communicator* on = nullptr;
  };
  std::vector<Unit> units_;
  std::shared_ptr<const Step> step_;  // shared with queued work
  std::shared_ptr<Collectives> collectives_ = std::make_shared<Collectives>();
  bool gathers_parts_ = true;  // collectives_ is the default
  dist::World& world_;
  Recorder* recorder_;
  std::vector<dist::Communicator*> groups_;            // by mesh::GroupId
  mesh::GroupId reduce_scatters_ = plan::kShardGroup;  // of the reduce-scatter stream
  Last last_[schedule::kStreamCount];                  // last request issued on each stream
  std::vector<Last> events_;             // by EventId; null completion: complete when recorded
  std::optional<DeviceStreams> device_;  // nullopt on CPU
  bool copies_from_host_ = false;        // since the last finish_copies()
};

}  // namespace shardlens::fsdp
