#include "sim/calibrate/calibrated_cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/base/error.h"
#include "sim/calibrate/measured_points.h"
#include "sim/cost/collective_cost.h"
#include "sim/cost/collective_curve.h"

namespace shardlens::sim {
namespace {

// At most 11 days, so that the sums of a step stay in range.
Nanoseconds capped_nanoseconds(double us) {
  return std::llround(std::min(us, 1e12) * 1e3);
}

// How far a size is outside the measured ones, on either side: 1 within them.
double distance(double beyond) {
  return std::max(beyond, 1 / beyond);
}

bool are_neighbours(Bytes a, Bytes b) {
  return static_cast<double>(std::max(a, b)) < kNeighbours * static_cast<double>(std::min(a, b));
}

std::string shown(const Calibration& calibration) {
  return calibration.sources.empty() ? "the calibration" : calibration.sources.front();
}

}  // namespace

CalibratedCostModel::CalibratedCostModel(const Calibration& calibration,
                                         const CostModel* fallback,
                                         std::shared_ptr<const CollectiveTimer> timer,
                                         double off)
    : calibration_(calibration), fallback_(fallback), timer_(std::move(timer)), off_(off) {
  if (timer_ == nullptr && !calibration.emulated.empty()) {
    timer_ = make_collective_timer(calibration.emulated);
  }
  for (const MeasuredOperator& each : calibration.operators) {
    shapes_.emplace(each.shape, &each);
  }
  for (const KernelClass& each : calibration.classes) {
    classes_.emplace(std::pair{each.name, each.dtype}, &each);
  }
}

std::optional<CalibratedCostModel::OfCurve> CalibratedCostModel::measured(CollectiveKind kind,
                                                                          int ranks,
                                                                          Bytes bytes) const {
  const CollectiveCurve* curve = find_curve(calibration_.curves, kind, ranks);
  if (kind == CollectiveKind::kSendRecv && curve == nullptr) {
    return passed_on(ranks, bytes);
  }
  if (kind != CollectiveKind::kAllReduce) {
    return curve == nullptr ? std::nullopt : std::optional(extended(*curve, bytes));
  }
  if (curve == nullptr) {
    return gathered(ranks, bytes);
  }
  // The time of a small all-reduce (the gradient norm) does not predict that of a large one.
  constexpr Bytes kFarther = 4;
  const Bytes last = curve->points.back().bytes;
  const Bytes limit = last > std::numeric_limits<Bytes>::max() / kFarther ? last : kFarther * last;
  const auto large = bytes > limit ? gathered(ranks, bytes) : std::nullopt;
  if (!large) {
    return extended(*curve, bytes);
  }
  // Neither less than a smaller all-reduce takes, nor more than in proportion to it.
  const double least = extended(*curve, limit).us;
  const double most = least * static_cast<double>(bytes) / static_cast<double>(limit);
  return OfCurve{std::clamp(large->us, least, most), large->beyond};
}

// A message that every rank passes on to the next one: PyTorch calls an all-to-all for it; without
// one it is a step of an all-gather's ring. nullopt: neither is measured.
std::optional<CalibratedCostModel::OfCurve> CalibratedCostModel::passed_on(int ranks,
                                                                           Bytes bytes) const {
  if (const auto exchanged = measured(CollectiveKind::kAllToAll, ranks, bytes)) {
    return exchanged;
  }
  auto gathered = measured(CollectiveKind::kAllGather, ranks, ranks * bytes);
  if (gathered) {
    gathered->us /= ranks - 1;
  }
  return gathered;
}

// An all-reduce as a reduce-scatter and an all-gather; nullopt: not both are measured.
std::optional<CalibratedCostModel::OfCurve> CalibratedCostModel::gathered(int ranks,
                                                                          Bytes bytes) const {
  const auto scatter = measured(CollectiveKind::kReduceScatter, ranks, bytes);
  const auto gather = measured(CollectiveKind::kAllGather, ranks, bytes);
  if (!scatter || !gather) {
    return std::nullopt;
  }
  // Over Gloo the reduce-scatter and the all-gather each also copy the rank's own part, 1/ranks of
  // the message. Source: bench/gloo_all_reduce.py, two to eight ranks, 0.66 to 1.08
  // (bench/RESULTS.md).
  constexpr double kOwnPart = 0.8;
  const double saved = calibration_.host == HostMode::kCompute ? kOwnPart / ranks : 0;
  const bool farther = distance(scatter->beyond) > distance(gather->beyond);
  return OfCurve{(1 - saved) * (scatter->us + gather->us),
                 farther ? scatter->beyond : gather->beyond};
}

// [Note: Beyond what was measured] Over Gloo an all-gather and a reduce-scatter of 28 MB take the
// same time, though their times differ for small messages (bench/gloo_all_reduce.py). So beyond the
// largest measured size both use the higher of their two bandwidths.
CalibratedCostModel::OfCurve CalibratedCostModel::extended(const CollectiveCurve& curve,
                                                           Bytes bytes) const {
  const CollectiveCurve::Point& last = curve.points.back();
  const double beyond = size_beyond(curve, bytes);
  if (bytes <= last.bytes || calibration_.host != HostMode::kCompute ||
      curve.kind == CollectiveKind::kAllReduce) {
    return {curve_us(curve, bytes), beyond};
  }
  double slope = us_per_byte_beyond(curve);
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    const CollectiveCurve* other = find_curve(calibration_.curves, kind, curve.ranks);
    if (other != nullptr && are_neighbours(other->points.back().bytes, last.bytes)) {
      slope = std::min(slope, us_per_byte_beyond(*other));
    }
  }
  return {last.us + slope * static_cast<double>(bytes - last.bytes), beyond};
}

double CalibratedCostModel::off(double us, double beyond) const {
  return off_ == 0 ? us : us * std::pow(distance(beyond), off_);
}

// At most what the smallest measured one takes, where kOffBelowOnCpu holds.
double CalibratedCostModel::off_of_collective(CollectiveKind kind,
                                              int ranks,
                                              Bytes bytes,
                                              const OfCurve& found) const {
  const double usual = off(found.us, found.beyond);
  if (off_ <= 0 || found.beyond >= 1 || calibration_.host != HostMode::kCompute) {
    return usual;
  }
  const auto smallest = std::llround(static_cast<double>(bytes) / found.beyond);
  const auto of_smallest = measured(kind, ranks, smallest);
  return std::max(usual, std::min(found.us * std::pow(found.beyond, -kOffBelowOnCpu),
                                  of_smallest ? of_smallest->us : usual));
}

double CalibratedCostModel::beyond(CollectiveKind kind, int ranks, Bytes larger_message) const {
  const auto found =
      ranks < 2 || timer_ != nullptr ? std::nullopt : measured(kind, ranks, larger_message);
  return found ? found->beyond : 1;
}

double CalibratedCostModel::beyond(const plan::Operator& op) const {
  const KernelClass* of_class = class_for(op);
  return of_class == nullptr || shapes_.contains(shape_of(op))
             ? 1
             : of_class->beyond(work_of(op.kind, op.flops, op.read + op.written));
}

Nanoseconds CalibratedCostModel::duration(CollectiveKind kind,
                                          int ranks,
                                          Bytes larger_message) const {
  if (ranks < 2) {
    return 0;
  }
  if (timer_ != nullptr) {
    return timer_->duration(kind, ranks, larger_message) +
           capped_nanoseconds(calibration_.collective_overhead_us);
  }
  if (const auto found = measured(kind, ranks, larger_message)) {
    return capped_nanoseconds(off_of_collective(kind, ranks, larger_message, *found));
  }
  if (fallback_ != nullptr) {
    return fallback_->duration(kind, ranks, larger_message);
  }
  throw InputError(shown(calibration_),
                   fmt::format("no {} between {} ranks was measured; record a run whose plan has "
                               "one, or give --hardware to use that hardware's collectives",
                               name_of(kind), ranks));
}

const KernelClass* CalibratedCostModel::class_for(const plan::Operator& op) const {
  const auto found = classes_.find({class_of(op), op.dtype});
  return found == classes_.end() ? nullptr : found->second;
}

bool CalibratedCostModel::is_hidden(const plan::Operator& op) const {
  return std::find(calibration_.hidden.begin(), calibration_.hidden.end(), op.name) !=
         calibration_.hidden.end();
}

bool CalibratedCostModel::knows(const plan::Operator& op) const {
  return is_view(op) || class_for(op) != nullptr || shapes_.contains(shape_of(op)) || is_hidden(op);
}

WorkTime CalibratedCostModel::compute(const plan::Operator& op) const {
  const auto shape = shapes_.find(shape_of(op));
  return compute(op, shape == shapes_.end() ? nullptr : shape->second);
}

WorkTime CalibratedCostModel::compute_by_class(const plan::Operator& op) const {
  return class_for(op) == nullptr ? compute(op) : compute(op, nullptr);
}

WorkTime CalibratedCostModel::compute(const plan::Operator& op,
                                      const MeasuredOperator* shape) const {
  if (is_view(op)) {
    return {};
  }
  const KernelClass* of_class = class_for(op);
  if (shape == nullptr && of_class == nullptr) {
    if (is_hidden(op)) {
      return {};
    }
    if (fallback_ != nullptr) {
      return fallback_->compute(op);
    }
    throw InputError(shown(calibration_),
                     fmt::format("no {} in {} was measured; capture a run that has one, or give "
                                 "--hardware to use that hardware's rates",
                                 op.name, plan_name(op.dtype)));
  }
  const double work = work_of(op.kind, op.flops, op.read + op.written);
  const double us =
      shape != nullptr ? shape->us : off(of_class->microseconds(work), of_class->beyond(work));
  const double slowdown = of_class != nullptr && of_class->slowdown
                              ? *of_class->slowdown
                              : calibration_.compute_slowdown.value_or(1);
  // At least a nanosecond: the simulator treats an operator that takes 0 as a view.
  return {std::max<Nanoseconds>(1, capped_nanoseconds(us)),
          std::max<Nanoseconds>(1, capped_nanoseconds(us * slowdown))};
}

Nanoseconds CalibratedCostModel::peer_wait(CollectiveKind kind, int ranks) const {
  const auto index = static_cast<size_t>(kind);
  const auto& waits = calibration_.peer_wait_us;
  const bool known = timer_ == nullptr && measured(kind, ranks, 1);
  if (!known || index >= waits.size()) {
    return 0;
  }
  if (kind == CollectiveKind::kAllReduce &&
      find_curve(calibration_.curves, kind, ranks) == nullptr) {
    // As what it is priced as: ranks come equally late to it.
    return capped_nanoseconds((waits[static_cast<size_t>(CollectiveKind::kAllGather)] +
                               waits[static_cast<size_t>(CollectiveKind::kReduceScatter)]) /
                              2);
  }
  return capped_nanoseconds(waits[index]);
}

double CalibratedCostModel::collective_slowdown() const {
  return calibration_.collective_slowdown.value_or(1);
}

double CalibratedCostModel::host_slowdown() const {
  return calibration_.host == HostMode::kCompute ? calibration_.compute_slowdown.value_or(1) : 1;
}

// Emulated collectives only last as long as the timer says, so any number of them run at the same
// time. On a CPU all-reduces were measured while all-gathers and reduce-scatters of the other axis
// ran: their curve has what sharing costs.
bool CalibratedCostModel::shares_links(CollectiveKind kind) const {
  return calibration_.emulated.empty() &&
         (calibration_.host == HostMode::kAhead || kind != CollectiveKind::kAllReduce);
}

bool CalibratedCostModel::blocks(CollectiveKind kind) const {
  return calibration_.blocking[static_cast<size_t>(kind)];
}

Nanoseconds CalibratedCostModel::waking() const {
  return capped_nanoseconds(calibration_.waking_us);
}

Nanoseconds CalibratedCostModel::copy(Bytes read, Bytes written) const {
  return capped_nanoseconds(calibration_.copy_us_per_mb * static_cast<double>(read + written) *
                            1e-6);
}

Nanoseconds CalibratedCostModel::copy_of(schedule::Op op,
                                         Bytes read,
                                         Bytes written,
                                         bool largest) const {
  const CopyTimes& own = calibration_.copies_of[static_cast<size_t>(op)];
  return own.points.empty() ? copy(read, written)
                            : capped_nanoseconds(own.microseconds(read + written, largest));
}

Nanoseconds CalibratedCostModel::host_copy(Bytes bytes) const {
  if (fallback_ != nullptr) {
    return fallback_->host_copy(bytes);
  }
  if (has_device()) {
    throw InputError(shown(calibration_),
                     "no copy between host and device was measured, so cpu_offload cannot be "
                     "predicted; give --hardware to use that hardware's link");
  }
  return copy(bytes, bytes);
}

bool CalibratedCostModel::has_device() const {
  return calibration_.host == HostMode::kAhead;
}

Nanoseconds CalibratedCostModel::on_host(const plan::Operator& op) const {
  if (fallback_ == nullptr) {
    throw InputError(shown(calibration_),
                     "no optimizer on the host was measured, so cpu_offload cannot be predicted; "
                     "give --hardware to use that hardware's host");
  }
  return fallback_->on_host(op);
}

Nanoseconds CalibratedCostModel::issue(const plan::Operator& op) const {
  if (op.launch == plan::Launch::kInGraph) {
    return 0;
  }
  const auto shape = shapes_.find(shape_of(op));
  if (shape != shapes_.end()) {
    return capped_nanoseconds(shape->second->issue_us);
  }
  const KernelClass* of_class = class_for(op);
  return of_class != nullptr    ? capped_nanoseconds(of_class->issue_us)
         : fallback_ != nullptr ? fallback_->issue(op)
                                : 0;
}

Nanoseconds CalibratedCostModel::issue(schedule::Op op) const {
  return capped_nanoseconds(calibration_.action_us[static_cast<size_t>(op)]);
}

Nanoseconds CalibratedCostModel::issue_communication(const plan::Communication& each) const {
  const auto& measured = calibration_.communication[static_cast<size_t>(each.kind)];
  return measured ? capped_nanoseconds(measured->us) : CostModel::issue_communication(each);
}

Nanoseconds CalibratedCostModel::before_wait(const plan::Communication& each) const {
  const auto& measured = calibration_.communication[static_cast<size_t>(each.kind)];
  return measured ? capped_nanoseconds(measured->before_wait_us) : 0;
}

Nanoseconds CalibratedCostModel::issue_hook(Hook hook) const {
  return capped_nanoseconds(calibration_.hook_us[static_cast<size_t>(hook)]);
}

}  // namespace shardlens::sim
