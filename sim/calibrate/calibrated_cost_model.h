#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/base/collective_timer.h"
#include "sim/calibrate/calibration.h"
#include "sim/cost/cost_model.h"

namespace shardlens::sim {

// How far the time of a size beyond the measured ones may be off: at f times the largest size it is
// between f^-kOffBeyond and f^kOffBeyond of the extended curve in 90 % of all cases. Source: the
// curves of NCCL in sim/hardware/specs, cut at every size of at least 1 MiB and extended to the
// others (MeasuredPoints.ExtendedCurvesAreWithinTheirBounds).
inline constexpr double kOffBeyond = 0.4;
// The same of collectives on a CPU that are smaller than any measured one, upwards: threads that
// wake up take most of their time. Source: all-gathers, reduce-scatters and all-reduces of 1 MiB
// over Gloo, by curves from 11.6 MB on: 0.27, 0.58 and 0.54 (tests/tools/other_degrees.py).
inline constexpr double kOffBelowOnCpu = 0.6;

// Durations measured from a machine's own runs.
//
// Operators    the mean of a measured shape; for other shapes the fitted line of their class; for a
//              class that was not measured, `fallback`.
// Collectives  `timer` if it is given; otherwise the timer of the emulated hardware, or the
//              measured curve of the same kind and number of ranks (an all-reduce without a curve
//              takes a reduce-scatter and an all-gather, a send_recv a step of an all-gather's
//              ring); otherwise `fallback`.
// Beyond       outside the measured sizes, at f times the nearest one, a duration is multiplied by
//              f^`off` (1/f below): 0 for the most likely one, ±kOffBeyond for its bounds.
// Errors       compute() and duration() throw InputError where neither the calibration nor
//              `fallback` has a duration.
class CalibratedCostModel final : public CostModel {
 public:
  // `fallback` may be null. The calibration and `fallback` must outlive the model.
  explicit CalibratedCostModel(const Calibration& calibration,
                               const CostModel* fallback = nullptr,
                               std::shared_ptr<const CollectiveTimer> timer = nullptr,
                               double off = 0);

  [[nodiscard]] Nanoseconds duration(CollectiveKind kind,
                                     int ranks,
                                     Bytes larger_message) const override;
  [[nodiscard]] WorkTime compute(const plan::Operator& op) const override;
  [[nodiscard]] Nanoseconds peer_wait(CollectiveKind kind, int ranks) const override;
  [[nodiscard]] double collective_slowdown() const override;
  [[nodiscard]] double host_slowdown() const override;
  [[nodiscard]] bool shares_links(CollectiveKind kind) const override;
  [[nodiscard]] bool blocks(CollectiveKind kind) const override;
  [[nodiscard]] Nanoseconds waking() const override;
  [[nodiscard]] Nanoseconds copy(Bytes read, Bytes written) const override;
  [[nodiscard]] Nanoseconds copy_of(schedule::Op op,
                                    Bytes read,
                                    Bytes written,
                                    bool largest) const override;
  [[nodiscard]] Nanoseconds host_copy(Bytes bytes) const override;
  [[nodiscard]] bool has_device() const override;
  [[nodiscard]] Nanoseconds on_host(const plan::Operator& op) const override;
  [[nodiscard]] double beyond(CollectiveKind kind, int ranks, Bytes larger_message) const override;
  [[nodiscard]] double beyond(const plan::Operator& op) const override;
  [[nodiscard]] Nanoseconds issue(const plan::Operator& op) const override;
  [[nodiscard]] Nanoseconds issue(schedule::Op op) const override;
  [[nodiscard]] Nanoseconds issue_communication(const plan::Communication& each) const override;
  [[nodiscard]] Nanoseconds before_wait(const plan::Communication& each) const override;
  [[nodiscard]] Nanoseconds issue_hook(Hook hook) const override;
  // compute() as if the operator's shape had not been measured itself.
  [[nodiscard]] WorkTime compute_by_class(const plan::Operator& op) const;
  // Whether the operator is a view, or its class was measured.
  [[nodiscard]] bool knows(const plan::Operator& op) const;
  // Factor by which concurrent communication slows operators of an unknown class.
  [[nodiscard]] double compute_slowdown() const {
    return calibration_.compute_slowdown.value_or(1);
  }

 private:
  [[nodiscard]] const KernelClass* class_for(const plan::Operator& op) const;
  [[nodiscard]] bool is_hidden(const plan::Operator& op) const;
  // `shape`: what was measured of this shape, if it is to be used.
  [[nodiscard]] WorkTime compute(const plan::Operator& op, const MeasuredOperator* shape) const;
  // A time from the measured curves, and the size divided by the nearest measured one.
  struct OfCurve {
    double us = 0, beyond = 1;
  };
  [[nodiscard]] std::optional<OfCurve> measured(CollectiveKind kind, int ranks, Bytes bytes) const;
  [[nodiscard]] OfCurve extended(const CollectiveCurve& curve, Bytes bytes) const;
  [[nodiscard]] std::optional<OfCurve> gathered(int ranks, Bytes bytes) const;
  [[nodiscard]] std::optional<OfCurve> passed_on(int ranks, Bytes bytes) const;
  [[nodiscard]] double off(double us, double beyond) const;
  [[nodiscard]] double off_of_collective(CollectiveKind kind,
                                         int ranks,
                                         Bytes bytes,
                                         const OfCurve& found) const;

  const Calibration& calibration_;
  const CostModel* fallback_;
  std::shared_ptr<const CollectiveTimer> timer_;
  double off_;
  std::map<OperatorShape, const MeasuredOperator*> shapes_;
  std::map<std::pair<std::string, DType>, const KernelClass*> classes_;
};

}  // namespace shardlens::sim
