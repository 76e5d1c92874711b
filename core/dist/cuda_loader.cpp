#include <filesystem>
#include <system_error>

#include <dlfcn.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "core/base/error.h"
#include "core/base/this_process.h"
#include "core/dist/cuda_backends.h"

namespace shardlens::dist {
namespace {

constexpr const char* kName = "libshardlens_cuda.so";

// The library next to the program, where an installation has it, or where a build has it (tests).
std::filesystem::path library() {
  std::error_code error;
  const std::filesystem::path folder = program_folder();
  const std::filesystem::path beside = folder / kName;
  if (std::filesystem::exists(beside, error)) {
    return beside;
  }
  for (const char* const place : {"../lib/shardlens", "../bin"}) {
    const std::filesystem::path file = (folder / place).lexically_normal() / kName;
    if (std::filesystem::exists(file, error)) {
      return file;
    }
  }
  return beside;
}

const CudaBackends* load() {
  const std::filesystem::path path = library();
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw InputError("--device cuda",
                     std::string("the CUDA part of the engine cannot be loaded: ") + dlerror());
  }
  const auto get = reinterpret_cast<const CudaBackends* (*)()>(  // NOLINT: what dlsym returns
      dlsym(handle, "shardlens_cuda_backends"));
  if (get == nullptr) {
    throw InputError("--device cuda",
                     path.string() +
                         " does not export shardlens_cuda_backends: it is from another "
                         "build; build or install Shardlens again");
  }
  return get();
}

}  // namespace

const CudaBackends& cuda_backends() {
  static const CudaBackends* const kBackends = load();
  return *kBackends;
}

void use_cuda(c10::Device device) {
  const std::string why = cuda_backends().unusable(device);
  if (!why.empty()) {
    throw InputError("--device cuda", why);
  }
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

}  // namespace shardlens::dist
