#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/collective.h"
#include "core/base/units.h"
#include "core/json/json_reader.h"
#include "sim/hardware/topology.h"

namespace shardlens::sim {

// How far a constant may be off, in 90 % of all cases, as natural logarithms: what it prices may
// take e^-faster to e^slower of its time.
struct ConstantRange {
  double faster = 0, slower = 0;
  friend bool operator==(const ConstantRange&, const ConstantRange&) = default;
};
// The range of a product of constants with independent errors: logarithms add as their squares.
[[nodiscard]] ConstantRange together(const ConstantRange& a, const ConstantRange& b);

// A kernel of fused attention: its rate in forward, TFLOP/s of the products that it computes, and
// backward's rate over forward's. tflops 0: not measured on the GPU.
struct AttentionKernel {
  double tflops = 0, backward_ratio = 1;
  ConstantRange range;
};

// One GPU. Rates are those that the vendor states; efficiencies are the shares that are reached.
struct GpuSpec {
  std::string name;
  int64_t sms = 0;
  Bytes memory = 0;
  double memory_gbps = 0;      // 1e9 bytes per second
  double copy_efficiency = 0;  // share of memory_gbps that copies reach
  // Bandwidth of PyTorch's own element-wise kernels and reductions over that of copies. Kernels
  // that a compiler makes reach that of copies.
  double elementwise_rate = 1;
  double fp32_tflops = 0, half_tflops = 0;  // matrix products in fp32 (no TF32), in bf16 and fp16
  // Dense products in 8 bits, in 8 bits with a scale for each 32 numbers, and in 4 bits; 0: the GPU
  // has none.
  double fp8_tflops = 0, mxfp8_tflops = 0, nvfp4_tflops = 0;
  double fp8_efficiency = 0;  // gemm_efficiency of these; 0: not measured, that of half precision
  // What products of random numbers reach of gemm_efficiency, which was measured with numbers that
  // need less power. fp8_efficiency was measured with random numbers. 1: not known.
  double random_data_rate = 1;
  double power_watts = 0;  // limit that the rates are for; 0: not known
  // See [Note: Waves] in gemm_model.h.
  double gemm_efficiency = 0, gemm_tile_exponent = 0, gemm_wave_us = 0, gemm_start_us = 0;
  double grouped_efficiency = 1;  // rate of torch._grouped_mm over that of one product
  // Fused attention: FlashAttention-2, or what scaled_dot_product_attention calls.
  double attention_tflops = 0, attention_backward_ratio = 0;  // as AttentionKernel
  // cuDNN's kernel; and, for latent attention, whose queries and keys are wider than values, that
  // of flex_attention and the memory-efficient one of scaled_dot_product_attention. The first two
  // were measured with random numbers.
  AttentionKernel cudnn_attention, flex_attention, efficient_attention;
  double kernel_us = 0;  // shortest kernel
  double host_link_gbps = 0;
  // Memory of the host, for each GPU: what an optimizer on the host reaches. 0: not known.
  double host_memory_gbps = 0;
};

// GPU memory that a rank uses outside of PyTorch's allocator (`context` and `nccl`), and what
// cuBLAS takes from it (`cublas`, one workspace for a handle and stream). 0: not counted.
struct OutsideMemory {
  Bytes context = 0;  // of CUDA, with the kernels that were loaded
  Bytes nccl = 0;     // buffers of one communicator
  Bytes cublas = 0;
  [[nodiscard]] Bytes total() const { return context + nccl + cublas; }
  friend bool operator==(const OutsideMemory&, const OutsideMemory&) = default;
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

// How NCCL moves data within a node: rings of its kernels; kernels on buffers in symmetric memory;
// copy engines where it can, symmetric kernels elsewhere.
enum class Transport : uint8_t { kRing, kSymmetric, kCopyEngine };

struct FabricSpec {  // how the GPUs of a machine communicate
  Link link = Link::kNvlink;
  // Bus bandwidth of NCCL's rings for large messages; computed from `links` if the spec omits it.
  double ring_gbps = 0;
  std::vector<TopologyLink> links;  // within a node; may be empty
  // All-reduces in the switches (NVLink SHARP): GB/s of the message, for any number of ranks, and
  // the number of ranks from which NCCL uses them; 0: not available.
  double nvls_gbps = 0;
  int64_t nvls_ranks = 0;
  double reduce_scatter_ratio = 1;  // a reduce-scatter's bandwidth over ring_gbps
  double ll_gbps = 0;               // NCCL's limit for its LL protocol on this architecture
  int64_t sms = 0;                  // SMs that NCCL's kernels occupy
  // Factor on the time of collectives while their GPU computes, at least 1.
  double collective_slowdown = 1;
  double network_gbps = 0;  // a GPU's share of its node's network bandwidth; 0: no network
  std::vector<CollectiveCurve> curves;
  Transport transport = Transport::kRing;  // a choice of the program; not in spec files
};

// What a software stack reaches on the hardware over a whole step: factors on the rates above, and
// on the bytes that operators move. 1 unless fitted.
struct SoftwareSpec {
  double matrix_rate = 1;     // factor on matrix rates: the clock under the power limit
  double attention_rate = 1;  // factor on the rates of attention
  double head64_rate = 1;     // further factor for heads of 64
  // Bytes moved, divided by the bytes that a fused kernel would move.
  double elementwise_passes = 1, loss_passes = 1, optimizer_passes = 1;
  double collective_rate = 1;  // factor on the bandwidth of collectives
  double step_us = 0;          // time per step in which the GPU waits for the host
  // Host time of a unit's forward and backward hooks, without the actions that they cause.
  double unit_us = 0;
};

// The relative errors that a machine's constants may have, by what they price.
struct ConstantRanges {
  ConstantRange products, attention, memory, collectives;
  ConstantRange host;       // operator_us, action_us, unit_us
  double step_us = 0;       // SoftwareSpec::step_us: on both sides, down to 0
  ConstantRange remaining;  // of a step whose constants are right: the model's own error
  // The same of steps in addition to which no stack was fitted: with experts, with a context over
  // several ranks.
  ConstantRange experts, context;
  ConstantRange clock;  // of products and attention together
  friend bool operator==(const ConstantRanges&, const ConstantRanges&) = default;
};

// Identical nodes of identical GPUs; each GPU reaches all others in its node.
struct HardwareSpec {
  std::string name;   // "8xH100"
  int64_t gpus = 0;   // per node
  int64_t nodes = 1;  // more than one needs fabric.network_gbps
  GpuSpec gpu;
  FabricSpec fabric;
  SoftwareSpec software;
  OutsideMemory outside;
  double operator_us = 0, action_us = 0;  // host time to issue one
  // SoftwareSpec::unit_us of programs that PyTorch's FSDP runs; 0: not known.
  double pytorch_unit_us = 0;
  ConstantRanges ranges;

  [[nodiscard]] int64_t ranks() const { return gpus * nodes; }
};

// Names of the built-in specs.
[[nodiscard]] std::vector<std::string> hardware_names();
// The spec's name in a name of --hardware: "8xH100" of itself and of "2x8xH100", two such nodes.
// "": it is neither.
[[nodiscard]] std::string_view node_of(std::string_view hardware);
// Loads a spec by its name, of one node or of several ("2x8xH100"), or from a file in the same
// format (docs/reference/simulator_costs.md); a name takes precedence over a file. Errors:
// InputError naming the nearest spec, or file and JSON pointer.
[[nodiscard]] HardwareSpec load_hardware(std::string_view name_or_path);
[[nodiscard]] HardwareSpec parse_hardware(std::string_view json, const std::string& source);
// Reads the object "software" of a spec or of a stack (stacks.h); missing keys keep their defaults.
[[nodiscard]] SoftwareSpec read_software(const plan::JsonNode& node);
// A constant {"value": …, "source": "…"} from `low` to `high`, the member `key` of `parent`.
[[nodiscard]] double read_constant(const plan::JsonNode& parent,
                                   std::string_view key,
                                   double low,
                                   double high);

}  // namespace shardlens::sim
