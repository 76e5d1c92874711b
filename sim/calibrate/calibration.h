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
#include "core/schedule/action.h"
#include "core/workload/workload.h"
#include "sim/calibrate/copy_times.h"
#include "sim/calibrate/observation.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// Everything that an operator's time depends on.
struct OperatorShape {
  std::string name;
  int64_t batch = 1, m = 0, n = 0, k = 0;
  DType dtype = DType::kF32;
  Bytes read = 0, written = 0;
  friend auto operator<=>(const OperatorShape&, const OperatorShape&) = default;
};
[[nodiscard]] OperatorShape shape_of(const plan::Operator& op);

// One measured shape. Times are in microseconds, without concurrent communication, and are means
// over `samples`.
struct MeasuredOperator {
  OperatorShape shape;
  plan::OperatorKind kind = plan::OperatorKind::kElementwise;
  int64_t flops = 0;
  double us = 0;
  double issue_us = 0;  // host time per operator
  int64_t samples = 0;
  double spread = 0;  // mean |sample - us| / us
};

// A class of kernels: operators of one class_of() and dtype. A shape that was not measured takes
// microseconds(x), where x is the FLOPs of a matrix product or attention (in 1e9), or the bytes of
// any other operator (in 1e6).
struct KernelClass {
  std::string name;  // class_of()
  DType dtype = DType::kF32;
  double us = 0, us_per_unit = 0, issue_us = 0;
  double least_work = 0, most_work = 0;  // of the measured shapes; 0: not known
  int64_t shapes = 0, samples = 0;
  double share = 0;   // of the run's compute time
  double spread = 0;  // mean over samples of |sample - its shape's mean| / mean
  // Factor by which concurrent communication slows it; nullopt: not run both with and without it.
  std::optional<double> slowdown;
  // Mean error when each shape is predicted from the other shapes; nullopt: too few shapes.
  std::optional<double> left_out;

  // us + us_per_unit · work. Beyond the measured shapes, times that do not depend on the work are
  // scaled in proportion to it.
  [[nodiscard]] double microseconds(double work) const;
  // `work` divided by the nearest measured one: 1 within the measured shapes, or if they are not
  // known.
  [[nodiscard]] double beyond(double work) const;
};
// "gemm", "attention" or "attention_backward" for these kinds, otherwise the operator's name.
[[nodiscard]] std::string class_of(const plan::Operator& op);
// x in KernelClass's formula.
[[nodiscard]] double work_of(plan::OperatorKind kind, int64_t flops, Bytes bytes);

// Constants of one machine, measured from its runs: `shardlens calibrate` writes them, and
// `simulate --calibration` reads them.
struct Calibration {
  std::vector<std::string> sources;
  HostMode host = HostMode::kAhead;
  int64_t ranks = 1;                        // the largest world size of the runs
  std::vector<MeasuredOperator> operators;  // by shape
  std::vector<KernelClass> classes;
  // Host time in microseconds, without the copies of an action; those take `copy_us_per_mb`.
  std::array<double, schedule::kOpCount> action_us{};
  std::array<double, kHookCount> hook_us{};
  // Host time of communication that the program issues itself, by CollectiveKind; nullopt: not
  // measured.
  struct Communication {
    double us = 0;              // in the call, and in the wait before it runs and after its end
    double before_wait_us = 0;  // between the call and the wait
    friend bool operator==(const Communication&, const Communication&) = default;
  };
  std::array<std::optional<Communication>, kCollectiveKindCount> communication{};
  double copy_us_per_mb = 0;  // bytes read and written, 1e6 each
  // The same of each action's copies, on a CPU; if not measured, copy_us_per_mb.
  std::array<CopyTimes, schedule::kOpCount> copies_of{};
  // Delay of a host thread when it wakes up from a wait: Linux may keep it for a time slice on a
  // core that another thread is using, even if another core is idle.
  double waking_us = 0;
  // Host time of a step outside the schedule: data, the gradient norm, the optimizer's loop.
  // Exposed communication there: that of the norm of sharded gradients, and the rest.
  double outside_us = 0, norm_communication_us = 0, outside_communication_us = 0;
  // Factor by which concurrent communication slows compute, and concurrent compute slows
  // communication; nullopt: not measured.
  std::optional<double> compute_slowdown, collective_slowdown;
  std::vector<CollectiveCurve> curves;  // as measured_curve() makes them
  // Mean time that a rank waited for later peers, in addition to the curve; by CollectiveKind. The
  // simulator treats the ranks as identical; without this the step would be too short, because real
  // ranks are not.
  std::array<double, 3> peer_wait_us{};
  // By CollectiveKind: the host waited for such a collective of a unit where it issued it, so that
  // nothing could run concurrently with it (PyTorch's FSDP over Gloo).
  std::array<bool, kCollectiveKindCount> blocking{};
  // For runs with emulated collectives: the emulated hardware, and the extra time of a collective
  // over its model. "": the collectives were real.
  std::string emulated;
  double collective_overhead_us = 0;
  // Operators of the plan's workload whose names are not in the traces: their time is part of the
  // operators after them, so the simulator gives them no time of their own.
  std::vector<std::string> hidden;
  std::vector<std::string> unknown;  // sentences on what could not be measured from the runs
};

// Fits all constants. All observations must have the same host mode, and either the same emulated
// hardware or none.
// Errors  InputError naming the run that differs from the first.
[[nodiscard]] Calibration calibrate(std::span<const Observation> observations);

// calibration.json, version 1; parse_calibration(to_json(c)) returns c.
// Errors: InputError with JSON pointer.
[[nodiscard]] std::string to_json(const Calibration& calibration);
[[nodiscard]] Calibration parse_calibration(std::string_view json, const std::string& source);
[[nodiscard]] Calibration load_calibration(const std::string& path);

}  // namespace shardlens::sim
