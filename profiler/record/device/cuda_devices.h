#pragma once

#include <functional>

#include <cupti.h>

namespace shardlens::record {

// Calls `visit` for each GPU that the driver shows to this process. CUPTI has such records too, but
// only of contexts that are created while it records, which is before the first window.
//
// library  the driver's
// Errors   no call if the library cannot be loaded, or from the first error of the driver on.
void for_each_cuda_device(const std::function<void(const CUpti_ActivityDevice5&)>& visit,
                          const char* library = "libcuda.so.1");

}  // namespace shardlens::record
