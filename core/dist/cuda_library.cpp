// The function that libshardlens_cuda.so exports.
#include <cuda_runtime_api.h>

#include "core/dist/delay_backend.h"
#include "core/dist/nccl_backend.h"

namespace shardlens::dist {
namespace {

std::string unusable(c10::Device device) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    return "the NVIDIA driver of this machine is not loaded, or is too old for CUDA 13; use "
           "--device cpu";
  }
  if (error != cudaSuccess) {
    return std::string("no NVIDIA GPU can be used on this machine: ") + cudaGetErrorString(error);
  }
  if (device.index() >= count) {
    return "this rank needs " + device.str() + ", but this machine has " + std::to_string(count) +
           (count == 1 ? " GPU" : " GPUs") +
           "; NCCL needs one GPU per rank (--backend emulated runs one rank of many on one GPU)";
  }
  return "";
}

}  // namespace
}  // namespace shardlens::dist

extern "C" __attribute__((visibility("default"))) const shardlens::dist::CudaBackends*
shardlens_cuda_backends() {
  static constexpr shardlens::dist::CudaBackends kBackends{shardlens::dist::unusable,
                                                           shardlens::dist::make_nccl_backend,
                                                           shardlens::dist::make_delay_backend};
  return &kBackends;
}
