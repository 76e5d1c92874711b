#pragma once

#include "core/dist/cuda_backends.h"

namespace shardlens::dist {

// See CudaBackends::emulated.
c10::intrusive_ptr<c10d::Backend> make_delay_backend(int rank,
                                                     int size,
                                                     std::shared_ptr<const CollectiveTimer> timer,
                                                     c10::Device device);

}  // namespace shardlens::dist
