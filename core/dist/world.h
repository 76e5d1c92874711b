#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "core/base/collective_timer.h"
#include "core/dist/communicator.h"

namespace shardlens::dist {

enum class BackendKind : uint8_t { kGloo, kNccl, kEmulated };

struct WorldOptions {
  BackendKind backend = BackendKind::kGloo;
  int rank = 0;
  int world_size = 1;
  int replicate = 1;  // mesh axes; replicate · shard = world_size
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
  std::shared_ptr<const CollectiveTimer> timer = nullptr;  // kEmulated
  Recorder* recorder = nullptr;
  c10::Device device{c10::kCPU};   // of the tensors; CUDA with kNccl and kEmulated alone
  bool force_collectives = false;  // kNccl: through ProcessGroupNCCL in a world of one rank too
  // Compare what the ranks are about to do before every collective, and their parameters when they
  // are sharded: costs a small exchange each. Also on where TORCH_DISTRIBUTED_DEBUG is DETAIL.
  bool check_ranks = false;
};

// The process groups of one rank: `shard` over the shard axis, `replicate` over the replicate axis,
// `world` over all ranks. Gloo and NCCL: ranks meet through the FileStore that SHARDLENS_RENDEZVOUS
// names (one node), or the TCPStore at MASTER_ADDR:MASTER_PORT (torchrun, srun, mpirun). World size
// 1 needs no rendezvous. Emulated: this process is rank r of W alone; collectives take as long as
// the timer says.
//
// Errors  RuntimeFault naming the address when ranks do not meet within the timeout or the port is
//         busy.
class World {
 public:
  static std::unique_ptr<World> join(const WorldOptions& options);
  virtual ~World() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual bool emulated() const = 0;
  virtual Communicator& shard() = 0;
  virtual Communicator& replicate() = 0;
  // Over `ranks` neighbours on the shard axis, a part of it (reshard_after_forward = k). Made at
  // the first call, which all ranks make in the same order.
  virtual Communicator& sub_shard(int ranks) = 0;
  virtual Communicator& world() = 0;
  virtual void set_recorder(Recorder* recorder) = 0;
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace shardlens::dist
