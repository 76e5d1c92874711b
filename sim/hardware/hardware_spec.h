#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/collective.h"
#include "core/base/units.h"
#include "core/plan/json_reader.h"
#include "sim/hardware/topology.h"

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
  double ring_gbps = 0;  // bus bandwidth of NCCL's rings at large messages; else of `links`
  std::vector<TopologyLink> links;  // of a node; may be empty
  // All-reduces in the switches (NVLink SHARP): GB/s of the message, whatever the ranks, and from
  // how many of them on NCCL takes them; 0: there are none.
  double nvls_gbps = 0;
  int64_t nvls_ranks = 0;
  double reduce_scatter_ratio = 1;  // of it, in a reduce-scatter
  double ll_gbps = 0;               // NCCL's limit of its LL protocol on this architecture
  int64_t sms = 0;                  // that NCCL's kernels occupy
  double network_gbps = 0;          // of a GPU's share of its node's network; 0: there is none
  std::vector<CollectiveCurve> curves;
};

// What a software stack makes of the hardware, in long steps: shares of the rates above, and what
// it does more often than once. Neutral unless fitted.
struct SoftwareSpec {
  double matrix_rate = 1;     // of matrix products: the clock that power leaves
  double attention_rate = 1;  // of attention_tflops
  double head64_rate = 1;     // of that, with heads of 64
  double elementwise_passes = 1, loss_passes = 1, optimizer_passes = 1;  // bytes moved, over fused
  double collective_rate = 1;                                            // of the fabric's curves
  double step_us = 0;  // of a step in which the GPU waits for the host
};

// Equal nodes of equal GPUs, each reaching every other in its node.
struct HardwareSpec {
  std::string name;   // "8xH100"
  int64_t gpus = 0;   // of a node
  int64_t nodes = 1;  // more than one needs fabric.network_gbps
  GpuSpec gpu;
  FabricSpec fabric;
  SoftwareSpec software;
  double operator_us = 0, action_us = 0;  // of the host, to issue one

  [[nodiscard]] int64_t ranks() const { return gpus * nodes; }
};

// Names of the specs that come with Shardlens.
[[nodiscard]] std::vector<std::string> hardware_names();
// A spec's name, or a file in the same form (docs/simulator.md); a name wins.
// Errors: InputError naming the nearest spec, or file and JSON pointer.
[[nodiscard]] HardwareSpec load_hardware(std::string_view name_or_path);
[[nodiscard]] HardwareSpec parse_hardware(std::string_view json, const std::string& source);
// The object "software" of a spec, or of a stack (stacks.h); what it leaves out stays neutral.
[[nodiscard]] SoftwareSpec read_software(const plan::JsonNode& node);

}  // namespace shardlens::sim
