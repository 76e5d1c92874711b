#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "core/base/collective_timer.h"
#include "core/dist/communicator.h"
#include "core/mesh/mesh.h"

namespace shardlens::dist {

enum class BackendKind : uint8_t { kGloo, kNccl, kEmulated };

struct WorldOptions {  // which world a process joins, and how
  BackendKind backend = BackendKind::kGloo;
  int rank = 0;
  int world_size = 1;
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
  std::shared_ptr<const CollectiveTimer> timer = nullptr;  // kEmulated
  Recorder* recorder = nullptr;
  c10::Device device{c10::kCPU};   // device of the tensors; CUDA only with kNccl and kEmulated
  bool force_collectives = false;  // kNccl: use ProcessGroupNCCL in a world of one rank too
  // Before every collective, compare what the ranks are about to do, and compare their parameters
  // when they are sharded. Each comparison is a small extra collective. TORCH_DISTRIBUTED_DEBUG =
  // DETAIL enables it too.
  bool check_ranks = false;
};

// The communicators of one rank: of the world, and of the groups of a plan's meshes. Gloo and NCCL:
// ranks connect through the FileStore that SHARDLENS_RENDEZVOUS names (one node), or the TCPStore
// at rendezvous_address() (torchrun, srun, mpirun; core/dist/rendezvous.h). World size 1 needs no
// rendezvous. Emulated: this process is rank r of W and there are no other processes; collectives
// take the time that the timer returns.
//
// Errors  RuntimeFault naming the address if ranks do not connect within the timeout or the port is
//         busy.
class World {
 public:
  static std::unique_ptr<World> join(const WorldOptions& options);
  virtual ~World() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual bool emulated() const = 0;
  virtual Communicator& world() = 0;
  // The communicator of this rank's group: the world's if it has all ranks and is not `separate`.
  // Created at the first call; all ranks must make these calls in the same order.
  virtual Communicator& of(const mesh::Group& group) = 0;
  virtual void set_recorder(Recorder* recorder) = 0;
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace shardlens::dist
