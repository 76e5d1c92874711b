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

// The CUDA functions that the engine needs beyond LibTorch's device-independent interface. They are
// in a separate library, libshardlens_cuda.so, next to the program: it links libtorch_cuda, which
// takes seconds to load, and runs on a CPU do not need it.
struct CudaBackends {
  // "" if `device` can be used; otherwise the reason, for a message.
  std::string (*unusable)(c10::Device device);
  // ProcessGroupNCCL bound to `device`; its NCCL communicator is created immediately.
  c10::intrusive_ptr<c10d::Backend> (*nccl)(const c10::intrusive_ptr<c10d::Store>& store,
                                            int rank,
                                            int size,
                                            std::chrono::milliseconds timeout,
                                            c10::Device device);
  // Like make_emulated_backend(), on the current stream: a kernel that occupies as many
  // multiprocessors as NCCL's, moves the bytes, and takes the time that `timer` returns.
  c10::intrusive_ptr<c10d::Backend> (*emulated)(int rank,
                                                int size,
                                                std::shared_ptr<const CollectiveTimer> timer,
                                                c10::Device device);
};

// Loads the library, and with it LibTorch's CUDA operators, at the first call.
//
// Threads     any.
// Errors      InputError that names what is missing.
[[nodiscard]] const CudaBackends& cuda_backends();
// Makes `device` the calling thread's current device. Errors: InputError if it cannot be used.
void use_cuda(c10::Device device);

}  // namespace shardlens::dist
