#include "core/dist/delay_kernel.h"

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

#include <dlfcn.h>
#include <nvrtc.h>

#include <cuda_runtime_api.h>

#include "core/base/error.h"

namespace shardlens::dist {
namespace {

// The kernels are named like NCCL's, so that programs that read a trace recognize collectives.
constexpr std::string_view kSource = R"(
typedef unsigned long long u64;

struct Pace {
  u64 begin, duration;
  long long clock_begin, clock_bound;
  __device__ static u64 now() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
  }
  __device__ Pace(u64 duration, u64 clock_bound)
      : begin(now()), duration(duration), clock_begin(clock64()), clock_bound((long long)clock_bound) {}
  // Waits until the time for `done` of `all` tiles has passed.
  __device__ void wait(u64 done, u64 all) const {
    const u64 target = (u64)((double)duration * (double)done / (double)all);
    while (now() - begin < target && clock64() - clock_begin < clock_bound) __nanosleep(100);
  }
};

// Calls `move(i)` for each element i of `count`, in tiles of one element per thread.
template <class Move>
__device__ void paced(u64 count, u64 duration, u64 clock_bound, Move move) {
  const Pace pace(duration, clock_bound);
  const u64 tile = (u64)gridDim.x * blockDim.x;
  const u64 tiles = (count + tile - 1) / tile;
  const u64 every = tiles / 64 + 1;
  for (u64 t = 0; t < tiles; ++t) {
    const u64 i = t * tile + (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) move(i);
    if (t % every == every - 1) pace.wait(t + 1, tiles);
  }
  pace.wait(1, 1);
}

template <class T>
__device__ void gather(const T* in, T* out, u64 n, int ranks, u64 duration, u64 bound) {
  paced(n, duration, bound, [=](u64 i) {
    const T value = in[i];
    for (int r = 0; r < ranks; ++r) {
      if (out + r * n != in) out[r * n + i] = value;
    }
  });
}
__device__ unsigned fold(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }
__device__ unsigned fold(unsigned v) { return v; }
__device__ unsigned fold(unsigned short v) { return v; }
__device__ unsigned fold(unsigned char v) { return v; }
template <class T>
__device__ void scatter(const T* in, T* out, u64 n, int rank, int ranks, u64 duration, u64 bound) {
  unsigned seen = 0;
  paced(n, duration, bound, [=, &seen](u64 i) {
    for (int r = 0; r < ranks; ++r) {
      const T value = in[r * n + i];
      seen ^= fold(value);
      if (r == rank) out[i] = value;
    }
  });
  // Never true (a block has 512 threads); uses `seen`, so that the compiler keeps the reads.
  if (threadIdx.x > 512) out[0] = in[seen];
}
template <class T>
__device__ void in_place(T* out, u64 n, u64 duration, u64 bound) {
  paced(n, duration, bound, [=](u64 i) {
    volatile unsigned char* at = (volatile unsigned char*)(out + i);
    *at = *at;
  });
}

#define BY_UNIT(unit, call)                                 \
  switch (unit) {                                           \
    case 16: { typedef uint4 T; call; break; }              \
    case 4: { typedef unsigned T; call; break; }            \
    case 2: { typedef unsigned short T; call; break; }      \
    default: { typedef unsigned char T; call; break; }      \
  }

#define ARGUMENTS \
  const void *in, void *out, u64 n, int rank, int ranks, int unit, u64 duration, u64 bound

extern "C" __global__ void __launch_bounds__(512) ncclDevKernel_AllGather_EMULATED(ARGUMENTS) {
  BY_UNIT(unit, gather((const T*)in, (T*)out, n, ranks, duration, bound))
}
extern "C" __global__ void __launch_bounds__(512) ncclDevKernel_ReduceScatter_EMULATED(ARGUMENTS) {
  BY_UNIT(unit, scatter((const T*)in, (T*)out, n, rank, ranks, duration, bound))
}
extern "C" __global__ void __launch_bounds__(512) ncclDevKernel_AllReduce_EMULATED(ARGUMENTS) {
  BY_UNIT(unit, in_place((T*)out, n, duration, bound))
}
extern "C" __global__ void __launch_bounds__(512) ncclDevKernel_Broadcast_EMULATED(ARGUMENTS) {
  BY_UNIT(unit, in_place((T*)out, n, duration, bound))
}
)";

std::string name_of_kernel(CollectiveKind kind) {
  return std::string(kernel_name(kind)) + "_EMULATED";
}

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw RuntimeFault(std::string("emulated collective: ") + what + ": " +
                       cudaGetErrorString(error));
  }
}

void check(nvrtcResult result, const char* what) {
  if (result != NVRTC_SUCCESS) {
    throw RuntimeFault(std::string("emulated collective: ") + what + ": " +
                       nvrtcGetErrorString(result));
  }
}

// Kernels of one device; never unloaded.
struct Kernels {
  std::map<CollectiveKind, cudaKernel_t> by_kind;
  int clock_khz = 0;
};

const Kernels& kernels_of_current_device() {
  static std::mutex mutex;
  static std::map<int, Kernels> devices;
  int device = 0;
  check(cudaGetDevice(&device), "current device");
  const std::lock_guard lock(mutex);
  const auto found = devices.find(device);
  if (found != devices.end()) {
    return found->second;
  }
  int major = 0, minor = 0;
  Kernels kernels;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "attribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "attribute");
  check(cudaDeviceGetAttribute(&kernels.clock_khz, cudaDevAttrClockRate, device), "attribute");
  const std::vector<char> code = compile_delay_kernels(major * 10 + minor);
  cudaLibrary_t library = nullptr;
  check(cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        "loading the kernels");
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                    CollectiveKind::kAllReduce, CollectiveKind::kBroadcast}) {
    const std::string name = name_of_kernel(kind);
    check(cudaLibraryGetKernel(&kernels.by_kind[kind], library, name.c_str()), name.c_str());
  }
  return devices.emplace(device, std::move(kernels)).first->second;
}

// NVRTC opens this library by its name, but does not look for it in the folder where it itself is.
// If it is not there either, NVRTC says what is missing.
void open_builtins() {
  [[maybe_unused]] static void* const kLibrary = []() -> void* {
    Dl_info nvrtc{};
    int major = 0, minor = 0;
    if (dladdr(reinterpret_cast<const void*>(&nvrtcCompileProgram), &nvrtc) == 0 ||
        nvrtcVersion(&major, &minor) != NVRTC_SUCCESS) {
      return nullptr;
    }
    const std::string name =
        "libnvrtc-builtins.so." + std::to_string(major) + "." + std::to_string(minor);
    return dlopen((std::filesystem::path(nvrtc.dli_fname).parent_path() / name).c_str(), RTLD_LAZY);
  }();
}

// The widest word size, in bytes, that divides the slice size and both addresses.
int unit_of(const DelayLaunch& launch) {
  const auto bits = reinterpret_cast<uintptr_t>(launch.in) |
                    reinterpret_cast<uintptr_t>(launch.out) | static_cast<uintptr_t>(launch.bytes);
  return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : bits % 2 == 0 ? 2 : 1;
}

}  // namespace

std::string_view delay_source() {
  return kSource;
}

std::vector<char> compile_delay_kernels(int compute_capability) {
  open_builtins();
  nvrtcProgram program = nullptr;
  check(nvrtcCreateProgram(&program, kSource.data(), "delay.cu", 0, nullptr, nullptr), "NVRTC");
  const std::unique_ptr<nvrtcProgram, void (*)(nvrtcProgram*)> owner(
      &program, [](nvrtcProgram* each) { nvrtcDestroyProgram(each); });
  const std::string architecture = "--gpu-architecture=sm_" + std::to_string(compute_capability);
  const char* const options[] = {architecture.c_str(), "--std=c++17"};
  const nvrtcResult compiled = nvrtcCompileProgram(program, 2, options);
  size_t size = 0;
  if (compiled != NVRTC_SUCCESS) {
    check(nvrtcGetProgramLogSize(program, &size), "NVRTC");
    std::string log(size, '\0');
    check(nvrtcGetProgramLog(program, log.data()), "NVRTC");
    throw RuntimeFault("emulated collective: its kernels do not compile for sm_" +
                       std::to_string(compute_capability) + ": " + log);
  }
  check(nvrtcGetCUBINSize(program, &size), "NVRTC");
  std::vector<char> code(size);
  check(nvrtcGetCUBIN(program, code.data()), "NVRTC");
  return code;
}

void launch_delay(const DelayLaunch& launch) {
  const Kernels& kernels = kernels_of_current_device();
  constexpr unsigned kThreads = 512;
  int unit = unit_of(launch);
  unsigned long long count =
      static_cast<unsigned long long>(launch.bytes) / static_cast<unsigned>(unit);
  unsigned long long duration = static_cast<unsigned long long>(launch.duration);
  // Clock cycles in twice the duration plus one second, at the device's highest clock.
  unsigned long long bound =
      (2 * duration / 1000 + 1'000'000) * static_cast<unsigned long long>(kernels.clock_khz) / 1000;
  DelayLaunch values = launch;
  void* arguments[] = {&values.in,    &values.out, &count,    &values.rank,
                       &values.ranks, &unit,       &duration, &bound};
  const auto found = kernels.by_kind.find(launch.kind);
  const cudaKernel_t kernel = found == kernels.by_kind.end()
                                  ? kernels.by_kind.at(CollectiveKind::kAllReduce)
                                  : found->second;
  check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                         dim3(static_cast<unsigned>(launch.ctas)), dim3(kThreads), arguments, 0,
                         static_cast<cudaStream_t>(launch.stream)),
        "launch");
}

}  // namespace shardlens::dist
