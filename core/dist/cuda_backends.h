#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "core/base/collective_timer.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace shardlens::dist {

// What the engine needs of CUDA beyond LibTorch's device-independent interface. It lives in a
// library of its own, libshardlens_cuda.so beside the program, since it links libtorch_cuda, which
// takes seconds to load that runs on a CPU would pay for nothing.
struct CudaBackends {
  // "" if `device` can be used; otherwise why not, for a message.
  std::string (*unusable)(c10::Device device);
  // ProcessGroupNCCL bound to `device`, its communicator made at once.
  c10::intrusive_ptr<c10d::Backend> (*nccl)(const c10::intrusive_ptr<c10d::Store>& store,
                                            int rank,
                                            int size,
                                            std::chrono::milliseconds timeout,
                                            c10::Device device);
  // As make_emulated_backend(), on the current stream: a kernel that occupies the multiprocessors
  // that NCCL's would, moves the bytes, and ends when `timer` says.
  c10::intrusive_ptr<c10d::Backend> (*emulated)(int rank,
                                                int size,
                                                std::shared_ptr<const CollectiveTimer> timer,
                                                c10::Device device);
};

// Loads the library at the first call; LibTorch's CUDA operators come with it.
//
// Threads     any.
// Errors      InputError saying what is missing.
[[nodiscard]] const CudaBackends& cuda_backends();
// Makes `device` the calling thread's current one. Errors: InputError if it cannot be used.
void use_cuda(c10::Device device);

}  // namespace shardlens::dist
