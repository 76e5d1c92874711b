#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/hook.h"
#include "core/plan/workload.h"
#include "core/schedule/action.h"
#include "sim/calibrate/observation.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// What an operator's time depends on.
struct OperatorShape {
  std::string name;
  int64_t batch = 1, m = 0, n = 0, k = 0;
  DType dtype = DType::kF32;
  Bytes read = 0, written = 0;
  friend auto operator<=>(const OperatorShape&, const OperatorShape&) = default;
};
[[nodiscard]] OperatorShape shape_of(const plan::Operator& op);

// One measured shape. Microseconds, without communication beside; means over `samples`.
struct MeasuredOperator {
  OperatorShape shape;
  plan::OperatorKind kind = plan::OperatorKind::kElementwise;
  int64_t flops = 0;
  double us = 0;
  double issue_us = 0;  // of the host, for one
  int64_t samples = 0;
  double spread = 0;  // mean |sample - us| / us
};

// A class of kernels: one name and dtype, of products all names. Shapes that were not measured take
// us + us_per_unit · x, with x the FLOPs of products and attention (in 1e9), the bytes of all else
// (in 1e6).
struct KernelClass {
  std::string name;  // class_of()
  DType dtype = DType::kF32;
  double us = 0, us_per_unit = 0, issue_us = 0;
  int64_t shapes = 0, samples = 0;
  double share = 0;                // of the run's compute
  double spread = 0;               // mean over samples of |sample - its shape's mean| / mean
  std::optional<double> slowdown;  // beside communication; nullopt: not seen with and without
  // Mean error of shapes predicted from the others of the class; nullopt: too few shapes.
  std::optional<double> left_out;
};
// "gemm", "attention", "attention_backward", or the name.
[[nodiscard]] std::string class_of(const plan::Operator& op);
// x of a class's line.
[[nodiscard]] double work_of(plan::OperatorKind kind, int64_t flops, Bytes bytes);

// Constants of one machine, as its runs show them: what `shardlens calibrate` writes and `simulate
// --calibration` reads.
struct Calibration {
  std::vector<std::string> sources;
  HostMode host = HostMode::kAhead;
  int64_t ranks = 1;                        // of the runs
  std::vector<MeasuredOperator> operators;  // by shape
  std::vector<KernelClass> classes;
  // Of the host, in microseconds; what copies within an action take besides is by `copy_us_per_mb`.
  std::array<double, schedule::kOpCount> action_us{};
  std::array<double, kHookCount> hook_us{};
  double copy_us_per_mb = 0;  // bytes read and written, 1e6 each
  // What a thread that slept in a wait loses when it goes on: Linux may leave it on a core that
  // another thread has, for a time slice, though a core is idle.
  double waking_us = 0;
  // Around the schedule's steps: data, the norm of gradients, the optimizer's loop.
  double outside_us = 0, outside_communication_us = 0;
  // How much longer compute takes with communication beside it, and communication with compute;
  // nullopt: not seen.
  std::optional<double> compute_slowdown, collective_slowdown;
  std::vector<CollectiveCurve> curves;  // never falling with bytes
  // How long a rank waited on average, beyond the curve, for peers that came later; by
  // CollectiveKind. Without it a step of ranks that are alike is too short by what they are not.
  std::array<double, 3> peer_wait_us{};
  // Of runs whose collectives were modelled: the hardware, and what each took beyond its model.
  std::string emulated;
  double collective_overhead_us = 0;
  // Operators of the plan's workload that did not run under their name: their time is part of what
  // came after them, and they take none of their own.
  std::vector<std::string> hidden;
  std::vector<std::string> unknown;  // what the runs could not teach, in sentences
};

// Fits all of it. Observations of one host mode; all emulated on one hardware, or none.
// Errors  InputError naming the run that does not go with the others.
[[nodiscard]] Calibration calibrate(std::span<const Observation> observations);

// calibration.json, version 1; parse_calibration(to_json(c)) gives c back.
// Errors: InputError with JSON pointer.
[[nodiscard]] std::string to_json(const Calibration& calibration);
[[nodiscard]] Calibration parse_calibration(std::string_view json, const std::string& source);
[[nodiscard]] Calibration load_calibration(const std::string& path);

}  // namespace shardlens::sim
