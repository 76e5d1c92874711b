#define USE_C10D_NCCL
#include "core/dist/nccl_backend.h"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "core/base/error.h"

namespace shardlens::dist {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank,
                                                    int size,
                                                    std::chrono::milliseconds timeout,
                                                    c10::Device device) {
  using Nccl = c10d::ProcessGroupNCCL;
  try {
    auto options = Nccl::Options::create();
    // Its watchdog ends the process. Our own waits end first, with a message that names the ranks.
    options->timeout = 2 * timeout + std::chrono::minutes(1);
    auto backend = c10::make_intrusive<Nccl>(store, rank, size, options);
    backend->setBoundDeviceId(device);
    backend->eagerConnectSingleDevice(device);
    return backend;
  } catch (const c10::Error& error) {
    throw RuntimeFault("[rank " + std::to_string(rank) + "] nccl: the " + std::to_string(size) +
                       " ranks did not connect: " + error.what_without_backtrace());
  }
}

}  // namespace shardlens::dist
