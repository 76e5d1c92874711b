#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/workload/workload.h"
#include "sim/calibrate/observation.h"
#include "sim/hardware/hardware_spec.h"
#include "sim/scenario/scenario.h"

namespace shardlens::sim {

// The operators of a step on one rank that are of the same unit, module, phase and name: how much
// they compute and move, and how long they take.
//
// Units  FLOPs and bytes as Operator counts them (read and written once); nanoseconds.
struct OperatorWork {
  std::string unit;    // FQN; "" is the root
  std::string module;  // FQN; "": not known
  plan::Phase phase = plan::Phase::kForward;
  plan::OperatorKind kind = plan::OperatorKind::kElementwise;
  std::string name;
  DType dtype = DType::kF32;
  std::optional<plan::MatmulDType> matmul_dtype;
  double count = 0, flops = 0, bytes = 0, time = 0;
};

// As recorded: the mean of the observed steps of all ranks. Operators of which no time was seen are
// left out.
[[nodiscard]] std::vector<OperatorWork> measured_work(const Observation& observation);
// As simulated, of the planned microbatches. Requires Detail::timeline.
[[nodiscard]] std::vector<OperatorWork> simulated_work(const Prediction& prediction);

// The least time of work on a GPU, in nanoseconds: its FLOPs at the vendor's rate of matrix
// products in its dtype, and its bytes at the vendor's bandwidth of memory.
//
// [Note: Roofline] The larger of the two is the roofline: no implementation that moves these bytes
// takes less. Rates are those of the vendor and not the shares that are reached in practice.
// Source  Williams, Waterman, Patterson, "Roofline" (2009).
struct LeastTime {
  double compute = 0, memory = 0;
  [[nodiscard]] double roofline() const { return compute > memory ? compute : memory; }
};
[[nodiscard]] LeastTime least_time(const OperatorWork& work, const GpuSpec& gpu);

// The spec whose GPU a trace names ("NVIDIA H100 80GB HBM3"); of several, the one with the most
// similar memory, and of these the one with the most GPUs. nullopt: none of the built-in ones is of
// this GPU. `memory`: 0: not known.
[[nodiscard]] std::optional<HardwareSpec> hardware_of_device(std::string_view device,
                                                             Bytes memory = 0);

}  // namespace shardlens::sim
