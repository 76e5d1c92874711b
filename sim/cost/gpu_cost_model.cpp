#include "sim/cost/gpu_cost_model.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/workload/product_casts.h"
#include "core/workload/routing.h"
#include "sim/cost/gemm_model.h"
#include "sim/cost/transport.h"

namespace shardlens::sim {
namespace {

constexpr double kCausalShare = 0.5;  // of the score matrix that a causal kernel computes
// Rows of a fused kernel's tile; tiles on the diagonal are computed entirely.
constexpr double kAttentionTile = 128;
constexpr int64_t kSmallHead = 64;
// Host time of compiled code in that of an eager operator: bench/compiled_host_cost.py, torch 2.11
// on a virtual machine with two cores (91 and 3.9 against 7.0 microseconds, bench/RESULTS.md).
constexpr double kOperatorsPerCall = 13, kOperatorsPerKernel = 0.55;
// Atomic additions of bf16 numbers in a microsecond, of many rows to few. 47.6e9 a second on a
// B200: 7.77e6 rows of 512, half of them to one row, in 83.58 ms (PyTorch pull request
// 183950). 47.5e9 on an H100: with a kernel that has none for the gradients of the experts' biases,
// the compiled gpt-oss-20b on 8 H100 reached 19.49 instead of 17.10 % of the peak (torchtitan pull
// requests 2686 and 2687; 24.07 GFLOP a token: 2440), 143 ms less for 24 times 283e6 additions.
constexpr double kAtomicAddsPerUs = 47.5e3;
// A ring reads and writes each byte that passes through it once.
constexpr double kMemoryPerBusByte = 2;

Nanoseconds nanoseconds(double us) {
  return std::llround(us * 1e3);
}

}  // namespace

GpuCostModel::GpuCostModel(const HardwareSpec& spec)
    : spec_(spec), sustained_(spec.gpu), timer_(spec.fabric) {
  sustained_.half_tflops *= spec.software.matrix_rate;
  sustained_.fp32_tflops *= spec.software.matrix_rate;
  // fp8_efficiency has the clock that random numbers leave; gemm_efficiency has not.
  const double known = spec.gpu.fp8_efficiency > 0 ? spec.gpu.random_data_rate : 1;
  for (double* rate :
       {&sustained_.fp8_tflops, &sustained_.mxfp8_tflops, &sustained_.nvfp4_tflops}) {
    *rate *= std::min(1.0, spec.software.matrix_rate / known);
  }
  const double taken =
      kMemoryPerBusByte * spec.fabric.ring_gbps / (spec.gpu.memory_gbps * spec.gpu.copy_efficiency);
  memory_share_ = std::max(0.1, 1 - taken);
}

Nanoseconds GpuCostModel::duration(CollectiveKind kind, int ranks, Bytes larger_message) const {
  return std::llround(static_cast<double>(timer_.duration(kind, ranks, larger_message)) /
                      spec_.software.collective_rate);
}

Nanoseconds GpuCostModel::duration_across(CollectiveKind kind,
                                          int ranks,
                                          int ranks_per_node,
                                          Bytes larger_message) const {
  return std::llround(
      static_cast<double>(timer_.duration_across(kind, ranks, ranks_per_node, larger_message)) /
      spec_.software.collective_rate);
}

bool GpuCostModel::takes_cores(CollectiveKind kind) const {
  return !on_copy_engines(spec_.fabric.transport, kind);
}

// The factors are for eager operators; what inductor makes is one fused kernel.
double GpuCostModel::passes(const plan::Operator& op) const {
  if (op.name.starts_with("triton_")) {
    return 1;
  }
  switch (op.kind) {
    case plan::OperatorKind::kLoss:
      return spec_.software.loss_passes;
    case plan::OperatorKind::kOptimizer:
      return spec_.software.optimizer_passes;
    case plan::OperatorKind::kGemm:
    case plan::OperatorKind::kAttention:
      return 1;
    default:
      return spec_.software.elementwise_passes / spec_.gpu.elementwise_rate;
  }
}

double GpuCostModel::bytes_us(Bytes bytes) const {
  return static_cast<double>(bytes) / (spec_.gpu.memory_gbps * spec_.gpu.copy_efficiency * 1e3);
}

double GpuCostModel::attention_us(const plan::Operator& op) const {
  // The spec's rate is that of half precision; fp32's is scaled by its matrix rate.
  const GpuSpec& gpu = spec_.gpu;
  const AttentionKernel usual{gpu.attention_tflops, gpu.attention_backward_ratio, {}};
  const AttentionKernel& named = op.name.starts_with(plan::kFlexAttention) ? gpu.flex_attention
                                 : op.name.starts_with(plan::kEfficientAttention)
                                     ? gpu.efficient_attention
                                     : usual;
  const AttentionKernel& kernel = named.tflops > 0 ? named : usual;
  double rate = kernel.tflops * peak_tflops(gpu, op.dtype) / gpu.half_tflops *
                spec_.software.attention_rate *
                (op.k <= kSmallHead ? spec_.software.head64_rate : 1);
  if (op.phase == plan::Phase::kBackward) {
    rate *= kernel.backward_ratio;
  }
  const double diagonal = std::min(1.0, kAttentionTile / static_cast<double>(op.n));
  const double share = op.causal ? kCausalShare * (1 + diagonal) : 1;
  return static_cast<double>(op.flops) * share / (rate * 1e6);
}

double GpuCostModel::product_us(const plan::Operator& op, int64_t sms) const {
  if (!op.matmul_dtype) {
    const auto number = static_cast<double>(size_of(op.dtype));
    const double grouped = op.name == plan::kGroupedProduct ? sustained_.grouped_efficiency : 1;
    return gemm_us(
        sustained_,
        {peak_tflops(sustained_, op.dtype), sustained_.gemm_efficiency * grouped, number, number},
        op.batch, op.m, op.n, op.k, sms);
  }
  const double rate = tflops_of(sustained_, *op.matmul_dtype);
  if (rate == 0) {
    throw InputError(spec_.name, fmt::format("{} has no products in {}", spec_.gpu.name,
                                             name_of(*op.matmul_dtype)));
  }
  return gemm_us(
      sustained_,
      {rate, spec_.gpu.fp8_efficiency > 0 ? spec_.gpu.fp8_efficiency : spec_.gpu.gemm_efficiency,
       plan::product_casts(*op.matmul_dtype, false).bytes, static_cast<double>(size_of(op.dtype))},
      op.batch, op.m, op.n, op.k, sms);
}

WorkTime GpuCostModel::compute(const plan::Operator& op) const {
  if (is_view(op)) {
    return {};
  }
  const GpuSpec& gpu = spec_.gpu;
  const int64_t free_sms = gpu.sms - sms_of(spec_);
  const double bytes = bytes_us(op.read + op.written) * passes(op);
  double alone = 0, beside = 0;
  switch (op.kind) {
    case plan::OperatorKind::kGemm:
      alone = product_us(op, gpu.sms);
      beside = product_us(op, free_sms);
      break;
    case plan::OperatorKind::kAttention:
      alone = std::max(attention_us(op), bytes);
      beside =
          std::max(attention_us(op) * static_cast<double>(gpu.sms) / static_cast<double>(free_sms),
                   bytes / memory_share_);
      break;
    default:
      alone = bytes;
      beside = bytes / memory_share_;
      if (op.name == plan::kAtomicSum) {
        alone = std::max(alone, static_cast<double>(op.flops) / kAtomicAddsPerUs);
      }
      break;
  }
  alone = std::max(alone, gpu.kernel_us);
  return {nanoseconds(alone), nanoseconds(std::max(alone, beside))};
}

Nanoseconds GpuCostModel::copy(Bytes read, Bytes written) const {
  return read + written == 0 ? 0
                             : nanoseconds(std::max(bytes_us(read + written), spec_.gpu.kernel_us));
}

Nanoseconds GpuCostModel::host_copy(Bytes bytes) const {
  return nanoseconds(static_cast<double>(bytes) / (spec_.gpu.host_link_gbps * 1e3));
}

Nanoseconds GpuCostModel::on_host(const plan::Operator& op) const {
  if (spec_.gpu.host_memory_gbps == 0) {
    throw InputError(spec_.name,
                     "a plan with cpu_offload needs \"host_memory_gbps\" in the spec's \"gpu\": "
                     "the rate at which the optimizer works on the host");
  }
  return nanoseconds(static_cast<double>(op.read + op.written) /
                     (spec_.gpu.host_memory_gbps * 1e3));
}

// What compiled code launches itself takes a part of an operator's host time; of what it calls, the
// host time of an operator. A call passes guards and wrappers of its inputs and outputs.
Nanoseconds GpuCostModel::issue(const plan::Operator& op) const {
  using plan::Launch;
  if (is_view(op) || op.launch == Launch::kInGraph) {
    return 0;
  }
  const bool called = op.kind == plan::OperatorKind::kGemm ||
                      op.kind == plan::OperatorKind::kAttention || op.launch == Launch::kOperator ||
                      op.launch == Launch::kFirstInGraph;
  const double operators = (called ? 1 : kOperatorsPerKernel) +
                           (op.launch == Launch::kFirstKernel ? kOperatorsPerCall : 0);
  return nanoseconds(operators * spec_.operator_us);
}

Nanoseconds GpuCostModel::issue(schedule::Op op) const {
  switch (op) {
    case schedule::Op::kFree:
    case schedule::Op::kUseFull:
    case schedule::Op::kUseShard:
      return 0;  // bookkeeping: included in the cost of the hook's other actions
    default:
      return nanoseconds(spec_.action_us);
  }
}

// Each unit has these four hooks once in a forward and backward.
Nanoseconds GpuCostModel::issue_hook(Hook hook) const {
  switch (hook) {
    case Hook::kPreForward:
    case Hook::kPostForward:
    case Hook::kPreBackward:
    case Hook::kGradsReady:
      return nanoseconds(spec_.software.unit_us / 4);
    default:
      return 0;
  }
}

}  // namespace shardlens::sim
