#include "sim/calibrate/calibration.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/median.h"
#include "core/schedule/reads_gradient.h"
#include "sim/calibrate/line_fit.h"
#include "sim/calibrate/measured_points.h"
#include "sim/calibrate/slowdown.h"
#include "sim/calibrate/uneven_waits.h"
#include "sim/cost/collective_cost.h"
#include "sim/engine/bucket_costs.h"
#include "sim/engine/step_costs.h"

namespace shardlens::sim {
namespace {

using plan::OperatorKind;
using schedule::PlannedItem;

double microseconds(Nanoseconds time) {
  return static_cast<double>(time) * 1e-3;
}

// Returns the bytes that an action copies where a cost model returns nanoseconds.
class BytesModel final : public CostModel {
 public:
  [[nodiscard]] Nanoseconds duration(CollectiveKind, int, Bytes) const override { return 0; }
  [[nodiscard]] WorkTime compute(const plan::Operator&) const override { return {}; }
  [[nodiscard]] Nanoseconds copy(Bytes read, Bytes written) const override {
    return read + written;
  }
  [[nodiscard]] Nanoseconds host_copy(Bytes) const override { return 0; }
  [[nodiscard]] Nanoseconds issue(const plan::Operator&) const override { return 0; }
  [[nodiscard]] Nanoseconds issue(schedule::Op) const override { return 0; }
};

class Fit {
 public:
  Calibration run(std::span<const Observation> observations) {
    check(observations);
    out_.host = observations.front().host;
    out_.emulated = observations.front().emulated;
    for (const Observation& each : observations) {
      out_.sources.push_back(each.source);
      out_.ranks = std::max(out_.ranks, each.plan.world_size);
      collect(each);
    }
    held_up();
    operators();
    classes();
    host();
    collectives();
    say_unknown(observations);
    return std::move(out_);
  }

 private:
  struct OfShape {
    OperatorKind kind = OperatorKind::kElementwise;
    std::string of_class;
    int64_t flops = 0;
    Samples samples;
    Samples issue;
  };

  static void check(std::span<const Observation> observations) {
    if (observations.empty()) {
      throw UsageError("calibrate: no run was given");
    }
    const Observation& first = observations.front();
    if (std::all_of(observations.begin(), observations.end(),
                    [](const Observation& each) { return each.steps.empty(); })) {
      throw InputError(first.source,
                       "no step could be read from it, so compute cannot be calibrated; record a "
                       "run with complete steps");
    }
    for (const Observation& each : observations) {
      if (each.host != first.host) {
        throw InputError(
            each.source,
            fmt::format("recorded on {}, but {} on {}: calibrate them separately",
                        each.host == HostMode::kCompute ? "the CPU" : "a GPU", first.source,
                        first.host == HostMode::kCompute ? "the CPU" : "a GPU"));
      }
      if (each.emulated != first.emulated) {
        const auto named = [](const std::string& hardware) {
          return hardware.empty() ? "real" : "those of " + hardware;
        };
        throw InputError(each.source,
                         fmt::format("its collectives are {}, but {}'s are {}: "
                                     "calibrate them separately",
                                     named(each.emulated), first.source, named(first.emulated)));
      }
    }
  }

  // Only steps between the quartiles of their durations, so that delayed steps do not count.
  static std::vector<const ObservedStep*> typical(const Observation& in) {
    std::vector<const ObservedStep*> steps;
    for (const ObservedStep& each : in.steps) {
      steps.push_back(&each);
    }
    std::stable_sort(steps.begin(), steps.end(), [](const ObservedStep* a, const ObservedStep* b) {
      return a->duration < b->duration;
    });
    const size_t cut = steps.size() < 3 ? 0 : std::max<size_t>(1, steps.size() / 4);
    return {steps.begin() + static_cast<std::ptrdiff_t>(cut),
            steps.end() - static_cast<std::ptrdiff_t>(cut)};
  }

  void take_blocking(const Observation& in) {
    for (size_t kind = 0; kind < in.blocking.size(); ++kind) {
      out_.blocking[kind] = out_.blocking[kind] || in.blocking[kind];
    }
  }

  void collect(const Observation& in) {
    StepCosts bytes = step_costs(in.workload, in.plan, BytesModel());
    add_bucket_costs(in.plan, in.planned, BytesModel(), bytes);
    const std::vector<const ObservedStep*> steps = typical(in);
    for (const ObservedStep* step : steps) {
      const RankProgram* own = in.of_ranks.empty() ? nullptr : &in.of_ranks[step->rank];
      const schedule::PlannedStep& planned = own == nullptr ? in.planned : own->planned;
      const plan::Workload& workload = own == nullptr ? in.workload : own->workload;
      outside_.add(microseconds(step->outside));
      norm_communication_.add(microseconds(step->norm_communication));
      outside_communication_.add(microseconds(step->outside_communication));
      std::vector<bool> stored(in.plan.units.size(), false);
      for (size_t i = 0; i < step->items.size(); ++i) {
        const PlannedItem& item = planned.order[i];
        const ObservedItem& seen = step->items[i];
        if (item.kind == PlannedItem::Kind::kOperator) {
          collect_operator(workload.operators[item.index], seen);
        } else if (item.kind == PlannedItem::Kind::kHook) {
          hooks_[static_cast<size_t>(planned.hooks[item.index].hook)].each.emplace_back(
              microseconds(seen.host), seen.host_beside);
        } else if (item.kind == PlannedItem::Kind::kAction) {
          collect_action(in, planned.actions[item.index].action, seen, bytes, stored);
        } else if (item.kind == PlannedItem::Kind::kCommunication) {
          const plan::Communication& of = workload.communications[item.index];
          communications_[static_cast<size_t>(of.kind)].each.emplace_back(microseconds(seen.host),
                                                                          seen.host_beside);
        } else {
          sleeps_ += seen.waited > 0 ? 1 : 0;
          const plan::Communication& of = workload.communications[item.index];
          before_waits_[static_cast<size_t>(of.kind)].each.emplace_back(microseconds(seen.host),
                                                                        seen.host_beside);
        }
      }
    }
    take_blocking(in);
    StepWindows windows;  // empty: not known, so that all collectives count
    for (const ObservedStep* step : steps) {
      windows.add(*step);
    }
    for (const ObservedCollective& each : in.collectives) {
      if (!windows.empty() && !windows.contain(each)) {
        continue;
      }
      collectives_[{each.kind, each.ranks, each.bytes}].each.emplace_back(
          microseconds(each.duration), each.beside);
      const auto kind = static_cast<size_t>(each.kind);
      if (each.waited && kind < waits_.size()) {
        waits_[kind].add(microseconds(*each.waited));
      }
    }
  }

  void collect_operator(const plan::Operator& op, const ObservedItem& seen) {
    if (op.read == 0 && op.written == 0 && op.flops == 0) {
      return;  // a view
    }
    OfShape& shape = shapes_[shape_of(op)];
    shape.kind = op.kind;
    shape.of_class = class_of(op);
    shape.flops = op.flops;
    if (seen.run >= 0) {
      shape.samples.each.emplace_back(microseconds(seen.run), seen.beside);
      shape.issue.each.emplace_back(microseconds(seen.host), seen.host_beside);
    }
  }

  void collect_action(const Observation& in,
                      const schedule::Action& action,
                      const ObservedItem& seen,
                      const StepCosts& bytes,
                      std::vector<bool>& stored) {
    if (action.unit != kNoUnit && action.unit >= in.plan.units.size()) {
      return collect_bucket(in, action, seen, bytes.units.at(action.unit));
    }
    bool adds = false;
    const bool stores = action.op == schedule::Op::kStoreGrad || action.op == schedule::Op::kToHost;
    if (stores && action.unit < stored.size()) {
      adds = stored[action.unit];
      stored[action.unit] = true;
    }
    const UnitCosts unit =
        action.unit < bytes.units.size() ? bytes.units[action.unit] : UnitCosts{};
    const Bytes copied = copy_time(action, unit, adds);
    const Bytes flattened = schedule::reads_gradient(action) ? unit.flatten : 0;
    sleeps_ += seen.waited > 0 ? 1 : 0;
    Nanoseconds own = seen.host;
    if (in.host == HostMode::kCompute) {
      const bool here =
          action.stream == schedule::Stream::kCompute || action.stream == schedule::Stream::kCopyIn;
      const Bytes bytes_here = flattened + (here ? copied : 0);
      if (bytes_here > 0) {
        copied_bytes_ += static_cast<double>(bytes_here);
        copied_.each.emplace_back(microseconds(seen.copied), seen.copied_beside);
        if (flattened == 0) {
          copies_of_[static_cast<size_t>(action.op)][bytes_here].each.emplace_back(
              microseconds(seen.copied), seen.copied_beside);
        }
        own -= seen.copied;
      }
    } else if (seen.run >= 0 && copied + flattened > 0) {
      copies_.push_back({static_cast<double>(copied + flattened), microseconds(seen.run)});
    }
    actions_[static_cast<size_t>(action.op)].each.emplace_back(microseconds(own), seen.host_beside);
  }

  // The Reducer copies gradients into the bucket before the all-reduce is launched, and back after
  // the wait. Its few waits are not counted as sleeps: see [Note: Held up].
  void collect_bucket(const Observation& in,
                      const schedule::Action& action,
                      const ObservedItem& seen,
                      const UnitCosts& bucket) {
    if (action.op == schedule::Op::kRecord) {
      return;  // its time is part of the launch
    }
    const Bytes copied =
        action.op == schedule::Op::kAllReduce ? bucket.reduce_copy_in : bucket.copy_out;
    Nanoseconds own = seen.host;
    if (in.host == HostMode::kCompute && copied > 0) {
      copied_bytes_ += static_cast<double>(copied);
      copied_.each.emplace_back(microseconds(seen.copied), seen.copied_beside);
      own -= seen.copied;
    } else if (in.host == HostMode::kAhead && seen.run >= 0 && copied > 0) {
      copies_.push_back({static_cast<double>(copied), microseconds(seen.run)});
    }
    actions_[static_cast<size_t>(action.op)].each.emplace_back(microseconds(own), seen.host_beside);
  }

  // [Note: Held up] If an operator on the CPU takes a time slice longer without concurrent
  // communication, a thread of another rank woke up on its core. A plan with fewer waits has fewer
  // such delays, so they count as the cost of waking up from a wait, not as the operator's time.
  // Threads do not sleep while they wait for emulated collectives. Where the host waits for each
  // collective, all ranks wake up at once, and a delay has no such cause: it stays the operator's.
  void held_up() {
    const bool blocks = std::ranges::any_of(out_.blocking, [](bool each) { return each; });
    if (out_.host != HostMode::kCompute || sleeps_ == 0 || !out_.emulated.empty() || blocks) {
      return;
    }
    double lost = 0;
    for (auto& [key, shape] : shapes_) {
      lost += shape.samples.release();
    }
    out_.waking_us = lost / static_cast<double>(sleeps_);
  }

  void operators() {
    std::map<std::string, Slowdown> by_class;
    Slowdown overall;
    for (const auto& [key, shape] : shapes_) {
      by_class[shape.of_class].add(shape.samples);
      overall.add(shape.samples);
    }
    out_.compute_slowdown = overall.value();
    for (const auto& [name, slowdown] : by_class) {
      slowdowns_[name] = slowdown.value();
    }
    for (const auto& [key, shape] : shapes_) {
      if (shape.samples.each.empty()) {
        ++unseen_[key.name];
        continue;
      }
      const double slowdown =
          slowdowns_[shape.of_class].value_or(out_.compute_slowdown.value_or(1));
      MeasuredOperator& measured = out_.operators.emplace_back();
      measured.shape = key;
      measured.kind = shape.kind;
      measured.flops = shape.flops;
      measured.us = shape.samples.mean_alone(slowdown);
      measured.issue_us = shape.issue.mean_alone(out_.compute_slowdown.value_or(1));
      measured.samples = static_cast<int64_t>(shape.samples.each.size());
      measured.spread = shape.samples.spread(measured.us, slowdown);
    }
  }

  void classes() {
    std::map<std::pair<std::string, DType>, std::vector<const MeasuredOperator*>> members;
    double total = 0;
    for (const MeasuredOperator& each : out_.operators) {
      members[{shapes_.at(each.shape).of_class, each.shape.dtype}].push_back(&each);
      total += each.us * static_cast<double>(each.samples);
    }
    for (const auto& [key, measured] : members) {
      KernelClass& fitted = out_.classes.emplace_back();
      fitted.name = key.first;
      fitted.dtype = key.second;
      fitted.shapes = static_cast<int64_t>(measured.size());
      fitted.slowdown = slowdowns_[key.first];
      std::vector<LinePoint> shapes;
      double time = 0, issue = 0, spread = 0;
      for (const MeasuredOperator* each : measured) {
        const auto samples = static_cast<double>(each->samples);
        shapes.push_back({work_of(each->kind, each->flops, each->shape.read + each->shape.written),
                          each->us, samples});
        fitted.samples += each->samples;
        time += each->us * samples;
        issue += each->issue_us * samples;
        spread += each->spread * samples;
      }
      std::vector<LinePoint> points = merged_neighbours(std::move(shapes));
      fitted.least_work = points.front().x;
      fitted.most_work = points.back().x;
      for (LinePoint& each : points) {
        each.weight = 1;  // small shapes run more often than large ones, but count alike
      }
      const Line line = fit_line(points);
      fitted.us = line.at_zero;
      fitted.us_per_unit = line.slope;
      fitted.issue_us = issue / static_cast<double>(fitted.samples);
      fitted.spread = spread / static_cast<double>(fitted.samples);
      fitted.share = total > 0 ? time / total : 0;
      fitted.left_out = left_out_error(points);
    }
    std::stable_sort(out_.classes.begin(), out_.classes.end(),
                     [](const KernelClass& a, const KernelClass& b) { return a.share > b.share; });
  }

  // Microseconds per byte that an action copies. On a device the copies are kernels, so their rate
  // is the slope over the bytes: a kernel's fixed cost does not count.
  [[nodiscard]] double copy_rate(double beside) const {
    if (copied_bytes_ > 0) {
      return copied_.mean_alone(beside) * static_cast<double>(copied_.each.size()) / copied_bytes_;
    }
    return copies_.empty() ? 0 : fit_line(merged_neighbours(copies_)).slope;
  }

  void host() {
    const double beside = out_.compute_slowdown.value_or(1);
    out_.copy_us_per_mb = copy_rate(beside) * 1e6;
    for (size_t op = 0; op < copies_of_.size(); ++op) {
      std::vector<LinePoint> measured;
      for (const auto& [bytes, samples] : copies_of_[op]) {
        measured.push_back({static_cast<double>(bytes), samples.mean_alone(beside),
                            static_cast<double>(samples.each.size())});
      }
      out_.copies_of[op] = copy_times(std::move(measured));
    }
    for (size_t op = 0; op < actions_.size(); ++op) {
      out_.action_us[op] = actions_[op].mean_alone(beside);
    }
    for (size_t hook = 0; hook < hooks_.size(); ++hook) {
      out_.hook_us[hook] = hooks_[hook].mean_alone(beside);
    }
    for (size_t kind = 0; kind < communications_.size(); ++kind) {
      if (!communications_[kind].each.empty()) {
        out_.communication[kind] = {communications_[kind].mean_alone(beside),
                                    before_waits_[kind].mean_alone(beside)};
      }
    }
    out_.outside_us = outside_.value();
    out_.norm_communication_us = norm_communication_.value();
    out_.outside_communication_us = outside_communication_.value();
  }

  // PyTorch's FSDP issues the all-reduces of gradients as it issues its other collectives. A run
  // without a replicate axis has none, or only small ones, of the norm.
  void blocking_all_reduces() {
    const auto blocks = [this](CollectiveKind kind) -> bool& {
      return out_.blocking[static_cast<size_t>(kind)];
    };
    blocks(CollectiveKind::kAllReduce) =
        blocks(CollectiveKind::kAllReduce) ||
        (blocks(CollectiveKind::kAllGather) && blocks(CollectiveKind::kReduceScatter));
  }

  void collectives() {
    blocking_all_reduces();
    Slowdown slowdown;
    for (const auto& [key, samples] : collectives_) {
      slowdown.add(samples);
    }
    out_.collective_slowdown = slowdown.value();
    const double beside = out_.collective_slowdown.value_or(1);
    if (!out_.emulated.empty()) {
      const auto timer = make_collective_timer(out_.emulated);
      std::vector<double> beyond;
      for (const auto& [key, samples] : collectives_) {
        const auto& [kind, ranks, bytes] = key;
        for (const auto& [us, share] : samples.each) {
          beyond.push_back(us - microseconds(timer->duration(kind, ranks, bytes)));
        }
      }
      // The median, so that a communication thread that was scheduled late does not count.
      out_.collective_overhead_us = beyond.empty() ? 0 : std::max(0.0, upper_median(beyond));
      out_.collective_slowdown.reset();
      return;
    }
    for (size_t kind = 0; kind < waits_.size(); ++kind) {
      out_.peer_wait_us[kind] = waits_[kind].value();
    }
    std::map<std::pair<CollectiveKind, int>, std::vector<LinePoint>> curves;
    for (const auto& [key, samples] : collectives_) {
      const auto& [kind, ranks, bytes] = key;
      if (bytes > 0) {
        curves[{kind, ranks}].push_back({static_cast<double>(bytes), samples.mean_alone(beside),
                                         static_cast<double>(samples.each.size())});
      }
    }
    for (const auto& [key, points] : curves) {
      out_.curves.push_back(measured_curve(key.first, key.second, points));
    }
  }

  void say_unknown(std::span<const Observation> observations) {
    const auto say = [this](std::string text) { out_.unknown.push_back(std::move(text)); };
    for (const auto& [name, count] : unseen_) {
      out_.hidden.push_back(name);
      say(fmt::format(
          "{} shapes of {} are in the plan's workload, but the traces have no operator of that "
          "name: their time is part of the operators after them",
          count, name));
    }
    std::string once;
    for (const KernelClass& each : out_.classes) {
      if (each.shapes == 1) {
        once +=
            fmt::format("{}{} ({})", once.empty() ? "" : ", ", each.name, plan_name(each.dtype));
      }
    }
    if (!once.empty()) {
      say("ran in only one shape, so other sizes are scaled in proportion: " + once);
    }
    if (!out_.compute_slowdown) {
      say("no operator ran both with and without concurrent communication: no interference is "
          "assumed");
    }
    if (out_.emulated.empty()) {
      say_unknown_collectives(observations);
    }
    std::string never;
    for (size_t op = 0; op < actions_.size(); ++op) {
      if (actions_[op].each.empty()) {
        never += fmt::format("{}{}", never.empty() ? "" : ", ",
                             schedule::name_of(static_cast<schedule::Op>(op)));
      }
    }
    if (std::all_of(actions_.begin(), actions_.end(),
                    [](const Samples& each) { return each.each.empty(); })) {
      say("the host's time of each action: the trace has it only by hook, copies included");
    } else if (!never.empty()) {
      say(fmt::format("the host's time of actions that are not in the plan is taken as 0: {}",
                      never));
    }
  }

  void say_unknown_collectives(std::span<const Observation> observations) {
    const auto say = [this](std::string text) { out_.unknown.push_back(std::move(text)); };
    if (out_.curves.empty()) {
      say("no collective has a size in the traces: their durations are unknown");
      return;
    }
    for (const CollectiveCurve& curve : out_.curves) {
      if (curve.points.size() == 1) {
        say(fmt::format("{} between {} ranks ran in one size: other sizes are scaled in proportion",
                        name_of(curve.kind), curve.ranks));
      }
    }
    for (const CollectiveKind kind :
         {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, CollectiveKind::kAllReduce}) {
      if (std::none_of(out_.curves.begin(), out_.curves.end(),
                       [kind](const CollectiveCurve& each) { return each.kind == kind; })) {
        say(fmt::format("no {} in the traces{}", name_of(kind),
                        kind == CollectiveKind::kAllReduce
                            ? ": taken as a reduce-scatter and an all-gather"
                            : ""));
      }
    }
    if (!out_.collective_slowdown) {
      say("no collective ran both with and without concurrent compute: no interference is "
          "assumed");
    }
    (void)observations;
  }

  Calibration out_;
  std::map<OperatorShape, OfShape> shapes_;
  std::map<std::string, int> unseen_;
  std::map<std::string, std::optional<double>> slowdowns_;  // by class
  std::array<Samples, schedule::kOpCount> actions_{};       // host time without copies
  int64_t sleeps_ = 0;                                      // waits that were not over at once
  Samples copied_;                                          // copies of actions on the CPU
  double copied_bytes_ = 0;
  std::array<std::map<Bytes, Samples>, schedule::kOpCount> copies_of_;  // on the CPU, by size
  std::vector<LinePoint> copies_;  // copies by kernels: bytes, microseconds
  std::array<Samples, kHookCount> hooks_{};
  // Host time by CollectiveKind: see Calibration::Communication.
  std::array<Samples, kCollectiveKindCount> communications_{}, before_waits_{};
  Mean outside_, norm_communication_, outside_communication_;
  std::array<Mean, 3> waits_{};  // for peers, by CollectiveKind
  std::map<std::tuple<CollectiveKind, int, Bytes>, Samples> collectives_;
};

}  // namespace

OperatorShape shape_of(const plan::Operator& op) {
  return {op.name, op.batch, op.m, op.n, op.k, op.dtype, op.read, op.written};
}

std::string class_of(const plan::Operator& op) {
  return op.kind == OperatorKind::kGemm ? "gemm"
         : op.kind == OperatorKind::kAttention
             ? (plan::is_attention_backward(op) ? "attention_backward" : "attention")
             : op.name;
}

double work_of(OperatorKind kind, int64_t flops, Bytes bytes) {
  return kind == OperatorKind::kGemm || kind == OperatorKind::kAttention
             ? static_cast<double>(flops) * 1e-9
             : static_cast<double>(bytes) * 1e-6;
}

double KernelClass::microseconds(double work) const {
  const Line line{us, us_per_unit};
  const bool beyond = most_work > 0 && work > most_work;
  return beyond && us_per_unit == 0 ? us * (work / most_work) : line.at(work);
}

double KernelClass::beyond(double work) const {
  const double nearest = std::clamp(work, least_work, most_work);
  return nearest > 0 && work > 0 ? work / nearest : 1;
}

Calibration calibrate(std::span<const Observation> observations) {
  Calibration out = Fit().run(observations);
  settle_waits(observations, out);
  return out;
}

}  // namespace shardlens::sim
