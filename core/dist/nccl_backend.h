#pragma once

#include "core/dist/cuda_backends.h"

namespace shardlens::dist {

// See CudaBackends::nccl. Errors: RuntimeFault if the ranks do not connect.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank,
                                                    int size,
                                                    std::chrono::milliseconds timeout,
                                                    c10::Device device);

}  // namespace shardlens::dist
