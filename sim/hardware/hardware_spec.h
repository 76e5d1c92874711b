#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/collective.h"
#include "core/base/units.h"

namespace shardlens::sim {

// One GPU. Rates are what the vendor prints; what of them is reached stands beside them.
struct GpuSpec {
  std::string name;
  int64_t sms = 0;
  Bytes memory = 0;
  double memory_gbps = 0;      // 1e9 bytes per second
  double copy_efficiency = 0;  // of memory_gbps, that copies and element-wise kernels reach
  double fp32_tflops = 0, half_tflops = 0;  // matrix products in fp32 (no TF32), in bf16 and fp16
  // See [Note: Waves] in gemm_model.h.
  double gemm_efficiency = 0, gemm_tile_exponent = 0, gemm_wave_us = 0, gemm_start_us = 0;
  double attention_tflops = 0;          // fused attention, forward, of the products it computes
  double attention_backward_ratio = 0;  // of that, in backward
  double kernel_us = 0;                 // shortest kernel
  double host_link_gbps = 0;
};

// One measured curve: time by bytes of the larger message, ascending.
struct CollectiveCurve {
  CollectiveKind kind = CollectiveKind::kAllGather;
  int ranks = 0;
  struct Point {
    Bytes bytes = 0;
    double us = 0;
  };
  std::vector<Point> points;
};

enum class Link : uint8_t { kNvlink, kPcie };

struct FabricSpec {
  Link link = Link::kNvlink;
  double ring_gbps = 0;             // bus bandwidth of NCCL's rings at large messages
  double reduce_scatter_ratio = 1;  // of it, in a reduce-scatter
  double ll_gbps = 0;               // NCCL's limit of its LL protocol on this architecture
  int64_t sms = 0;                  // that NCCL's kernels occupy
  std::vector<CollectiveCurve> curves;
};

// A node: equal GPUs, each reaching every other.
struct HardwareSpec {
  std::string name;  // "8xH100"
  int64_t gpus = 0;
  GpuSpec gpu;
  FabricSpec fabric;
  double operator_us = 0, action_us = 0;  // of the host, to issue one
};

// Names of the specs that come with Shardlens.
[[nodiscard]] std::vector<std::string> hardware_names();
// A spec's name, or a file in the same form (docs/simulator.md); a name wins.
// Errors: InputError naming the nearest spec, or file and JSON pointer.
[[nodiscard]] HardwareSpec load_hardware(std::string_view name_or_path);
[[nodiscard]] HardwareSpec parse_hardware(std::string_view json, const std::string& source);

}  // namespace shardlens::sim
