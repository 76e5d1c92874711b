#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/schedule/buckets.h"
#include "profiler/analysis/events/nesting.h"
#include "profiler/analysis/recover/recorded_operators.h"
#include "profiler/analysis/recover/recovered_plan.h"

namespace shardlens::analysis {
namespace {

using plan::Operator;
using trace::Category;
using trace::Event;
using trace::Severity;
using trace::Trace;

constexpr double kMiB = 1024.0 * 1024.0;

Bytes gradient_bytes(int64_t numel, const std::optional<DType>& dtype) {
  return numel * size_of(dtype.value_or(DType::kF32));
}

// The range of bucket caps with which the Reducer would form these buckets from gradients in this
// order.
struct CapRange {
  Bytes above = 0, up_to = std::numeric_limits<Bytes>::max();
};

// A bucket is closed by the gradient that reaches the cap; the last bucket may stay below it.
CapRange cap_range(const std::vector<RecoveredBucket>& buckets) {
  CapRange range;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const RecoveredBucket& each = buckets[i];
    const Bytes last = gradient_bytes(each.gradients.back(), each.dtype);
    range.above = std::max(range.above, each.bytes - last);
    if (i + 1 < buckets.size()) {
      range.up_to = std::min(range.up_to, each.bytes);
    }
  }
  return range;
}

// The number of MiB in the range with the fewest decimals.
std::optional<double> roundest(const CapRange& range) {
  if (range.above >= range.up_to) {
    return std::nullopt;
  }
  for (double step = 1; step > 1e-7; step /= 10) {
    const double top = range.up_to == std::numeric_limits<Bytes>::max()
                           ? std::ceil((static_cast<double>(range.above) + 1) / kMiB / step) * step
                           : std::floor(static_cast<double>(range.up_to) / kMiB / step) * step;
    const auto bytes = static_cast<Bytes>(top * kMiB);
    if (bytes > range.above && bytes <= range.up_to) {
      return top;
    }
  }
  return std::nullopt;
}

class DdpRecovery {
 public:
  DdpRecovery(const Trace& trace, const DdpLog& log) : trace_(trace), log_(log) {}

  RecoveredPlan run() {
    choose_pass();
    out_.plan.source = trace_.metadata.source;
    out_.world_size = out_.shard = std::max<int64_t>(1, trace_.metadata.world_size.value_or(1));
    out_.names_units = true;
    find_buckets();
    plan();
    choose_parameters();
    find_window();
    operators();
    place();
    merge_parameters();
    if (out_.parameters.size() > forward_operators()) {
      throw InputError(trace_.metadata.source,
                       fmt::format("forward has {} operators in the trace, fewer than the {} "
                                   "buckets; record operators with activities=[CPU, …]",
                                   forward_operators(), out_.buckets.size()));
    }
    attach();
    say_unknown();
    return std::move(out_);
  }

 private:
  struct Item {
    Nanoseconds time;
    Interval when;
    std::optional<Hook> hook;
    Operator op;
  };

  void note(std::string message, Severity severity = Severity::kNote, int64_t count = 1) {
    trace::add_diagnostic(out_.diagnostics, severity, std::move(message), count);
  }

  [[nodiscard]] const DdpPass& pass() const { return log_.passes[pass_]; }

  // Chooses the last complete pass: a profile may end in the middle of a backward, and DDP uses
  // other buckets in its first iteration.
  void choose_pass() {
    std::optional<size_t> best;
    std::tuple<bool, int64_t, size_t> most;  // whether all sizes are known, elements, gradients
    for (size_t i = 0; i < log_.passes.size(); ++i) {
      const std::vector<DdpBucket>& buckets = log_.passes[i].buckets;
      if (buckets.empty()) {
        continue;
      }
      int64_t numel = 0;
      size_t gradients = 0;
      for (const DdpBucket& each : buckets) {
        numel += std::max<int64_t>(0, each.numel);
        gradients += each.gradients.size();
      }
      const bool sized =
          std::ranges::all_of(buckets, [](const DdpBucket& each) { return each.numel >= 0; });
      const std::tuple<bool, int64_t, size_t> here{sized, numel, numel > 0 ? 0 : gradients};
      if (!best || here >= most) {
        best = i;
        most = here;
      }
    }
    if (!best) {
      throw InputError(trace_.metadata.source,
                       "DistributedDataParallel ran, but no backward in the trace reduces "
                       "gradients; record at least one whole training step outside of no_sync()");
    }
    pass_ = *best;
    const auto sizes = [](const DdpPass& each) {
      std::vector<int64_t> out;
      for (const DdpBucket& bucket : each.buckets) {
        out.push_back(bucket.numel);
      }
      return out;
    };
    const bool others = std::any_of(
        log_.passes.begin(), log_.passes.end(),
        [&](const DdpPass& each) { return !each.buckets.empty() && sizes(each) != sizes(pass()); });
    if (others) {
      note(
          "backwards in the trace reduce different buckets (DDP rebuilds them after its first "
          "iteration): the last complete backward is used");
    }
  }

  void find_buckets() {
    out_.units.push_back({"", -1, 0, std::nullopt, std::nullopt, std::nullopt});
    for (const DdpBucket& each : pass().buckets) {
      RecoveredBucket& bucket = out_.buckets.emplace_back();
      bucket.numel = each.numel;
      bucket.dtype = each.dtype;
      for (const DdpGradient& gradient : each.gradients) {
        if (gradient.numel >= 0) {
          bucket.gradients.push_back(gradient.numel);
        }
        if (!gradient.module.empty() && std::find(bucket.modules.begin(), bucket.modules.end(),
                                                  gradient.module) == bucket.modules.end()) {
          bucket.modules.push_back(gradient.module);
        }
      }
      if (bucket.gradients.size() != each.gradients.size()) {
        bucket.gradients.clear();
      }
      if (bucket.numel < 0 && !bucket.gradients.empty()) {
        bucket.numel =
            std::accumulate(bucket.gradients.begin(), bucket.gradients.end(), int64_t{0});
      }
      if (bucket.numel > 0) {
        bucket.bytes = gradient_bytes(bucket.numel, bucket.dtype);
      }
      out_.units.front().reduce_dtype = bucket.dtype;
    }
  }

  void plan() {
    plan::UnitEntry entry;
    entry.globs = {""};
    entry.api = plan::Api::kReplicate;
    out_.plan.units = {entry};
    out_.plan.find_unused_parameters = pass().reduces_used_map;
    out_.plan.gradient_as_bucket_view = pass().copies_out.empty();
    // Find the microbatches since the last step of the optimizer.
    Nanoseconds since = std::numeric_limits<Nanoseconds>::min();
    for (const Event& event : trace_.events) {
      const bool ends = event.phase == trace::EventPhase::kComplete &&
                        event.category == Category::kUserAnnotation &&
                        trace_.name(event).starts_with("Optimizer.step");
      if (ends && event.start < pass().forward.start) {
        since = std::max(since, event.start);
      }
    }
    first_ = pass_;
    bool all_reduce = true;
    while (first_ > 0 && log_.passes[first_ - 1].forward.start > since &&
           log_.passes[first_ - 1].backward.length() > 0) {
      --first_;
      all_reduce = all_reduce && !log_.passes[first_].buckets.empty();
    }
    out_.accumulate = static_cast<int64_t>(pass_ - first_ + 1);
    out_.sync_every_microbatch = all_reduce;
  }

  // One parameter per gradient, if one cap explains the buckets; otherwise one per bucket.
  void choose_parameters() {
    const bool sized = std::all_of(out_.buckets.begin(), out_.buckets.end(),
                                   [](const RecoveredBucket& each) { return each.bytes > 0; });
    if (!sized) {
      note(
          "sizes of all-reduces are not in the trace (record_shapes=True records them): bytes are "
          "not known, and nothing can be simulated",
          Severity::kWarning);
      return;
    }
    if (find_cap()) {
      for (const RecoveredBucket& bucket : out_.buckets) {
        for (const int64_t numel : bucket.gradients) {
          add_parameter("gradients", numel, bucket.dtype);
        }
      }
      return;
    }
    Bytes smallest = std::numeric_limits<Bytes>::max();
    for (const RecoveredBucket& bucket : out_.buckets) {
      smallest = std::min(smallest, bucket.bytes);
      add_parameter("buckets", bucket.numel, bucket.dtype);
    }
    out_.plan.bucket_cap_mb = static_cast<double>(smallest) / kMiB;
    const bool known =
        std::none_of(out_.buckets.begin(), out_.buckets.end(),
                     [](const RecoveredBucket& each) { return each.gradients.empty(); });
    note(
        fmt::format("{}: each bucket is treated as one parameter, with a bucket_cap_mb that keeps "
                    "them separate; other plans can merge buckets, but not split them",
                    known ? "no value of bucket_cap_mb gives these buckets for these gradients"
                          : "the gradients of a bucket are not in the trace "
                            "(record_shapes=True records their sizes)"));
  }

  // Each parameter needs a forward operator of its own. Where forward has fewer operators than
  // there are gradients (a linear layer has two), adjacent gradients of a bucket become one
  // parameter, those with the fewest elements first. Every cap that gives the recorded buckets for
  // the gradients gives them for such parameters too, because a bucket is closed by its last one.
  void merge_parameters() {
    if (out_.parameters.size() <= forward_operators() || !by_gradient()) {
      return;
    }
    struct Group {
      size_t bucket = 0, gradients = 0;
      int64_t numel = 0;
    };
    std::vector<Group> groups;
    for (size_t bucket = 0; bucket < out_.buckets.size(); ++bucket) {
      for (const int64_t numel : out_.buckets[bucket].gradients) {
        groups.push_back({bucket, 1, numel});
      }
    }
    while (groups.size() > forward_operators()) {
      std::optional<size_t> best;
      for (size_t i = 0; i + 1 < groups.size(); ++i) {
        const auto sum = [&groups](size_t at) { return groups[at].numel + groups[at + 1].numel; };
        if (groups[i].bucket == groups[i + 1].bucket && (!best || sum(i) < sum(*best))) {
          best = i;
        }
      }
      if (!best) {
        return;
      }
      groups[*best].gradients += groups[*best + 1].gradients;
      groups[*best].numel += groups[*best + 1].numel;
      groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(*best) + 1);
    }
    out_.parameters.clear();
    gradients_of_.clear();
    for (const Group& each : groups) {
      add_parameter("gradients", each.numel, out_.buckets[each.bucket].dtype);
      gradients_of_.push_back(each.gradients);
    }
    note(
        "forward has fewer operators than there are gradients: adjacent gradients of a bucket "
        "are treated as one parameter");
  }

  [[nodiscard]] bool by_gradient() const {
    return !out_.parameters.empty() && out_.parameters.front().module.starts_with("gradients");
  }

  void add_parameter(std::string_view of, int64_t numel, const std::optional<DType>& dtype) {
    const Bytes each = size_of(DType::kF32);
    out_.parameters.push_back({fmt::format("{}.{}", of, out_.parameters.size()),
                               (gradient_bytes(numel, dtype) + each - 1) / each});
  }

  [[nodiscard]] bool explains(const std::vector<schedule::Gradient>& gradients) const {
    schedule::BucketOptions options;
    if (out_.plan.bucket_cap_mb) {
      options.cap = static_cast<Bytes>(*out_.plan.bucket_cap_mb * kMiB);
    }
    options.find_unused_parameters = out_.plan.find_unused_parameters;
    // Parameters are registered in the order of forward; their gradients become ready in reverse
    // order.
    schedule::BucketModel model({gradients.rbegin(), gradients.rend()}, options);
    for (int iteration = 0; iteration < 2; ++iteration) {
      (void)model.begin();
      for (size_t i = gradients.size(); i-- > 0;) {
        (void)model.ready(static_cast<uint32_t>(i));
      }
      (void)model.end();
    }
    (void)model.begin();
    if (model.buckets().size() != out_.buckets.size()) {
      return false;
    }
    for (size_t i = 0; i < out_.buckets.size(); ++i) {
      const schedule::Bucket& made = model.buckets()[i];
      if (made.bytes != out_.buckets[i].bytes ||
          made.gradients.size() != out_.buckets[i].gradients.size()) {
        return false;
      }
    }
    return true;
  }

  [[nodiscard]] bool find_cap() {
    std::vector<schedule::Gradient> gradients;
    for (const RecoveredBucket& bucket : out_.buckets) {
      if (bucket.gradients.empty() || bucket.dtype != out_.buckets.front().dtype) {
        return false;
      }
      for (const int64_t numel : bucket.gradients) {
        gradients.push_back({gradient_bytes(numel, bucket.dtype), DType::kF32});
      }
    }
    if (explains(gradients)) {
      return true;
    }
    out_.plan.bucket_cap_mb = roundest(cap_range(out_.buckets));
    return out_.plan.bucket_cap_mb && explains(gradients);
  }

  // From the forward of the pass to the end of the optimizer's step.
  void find_window() {
    window_ = {pass().forward.start, pass().backward.end};
    const Nanoseconds next = pass_ + 1 < log_.passes.size()
                                 ? log_.passes[pass_ + 1].forward.start
                                 : std::numeric_limits<Nanoseconds>::max();
    for (const Event& event : trace_.events) {
      const bool step = event.phase == trace::EventPhase::kComplete &&
                        event.category == Category::kUserAnnotation &&
                        trace_.name(event).starts_with("Optimizer.step");
      if (step && event.start >= pass().backward.end && event.start < next) {
        optimizers_.push_back({event.start, event.end()});
        window_.end = std::max(window_.end, event.end());
      }
    }
  }

  [[nodiscard]] Section section_of(const Event& event) const {
    const Nanoseconds at = event.start;
    if (event.track != pass().forward_track && event.track != pass().backward_track) {
      return Section::kNone;
    }
    if (at < pass().backward.start) {
      return at < pass().forward.end ? Section::kForward : Section::kLoss;
    }
    if (at < pass().backward.end) {
      return Section::kBackward;
    }
    for (const Interval& step : optimizers_) {
      if (at < step.end) {
        return at < step.start ? Section::kClip : Section::kOptimizer;
      }
    }
    return Section::kNone;
  }

  void operators() {
    const RangeFinder reducer(trace_, [&](const Event& e) {
      return e.category == Category::kCpuOp && is_reducer_range(trace_.name(e));
    });
    int64_t again = 0;  // see [Note: Recomputed operators] (recovered_checkpoints.h)
    for (const uint32_t index : leaf_operators(trace_)) {
      const Event& event = trace_.events[index];
      if (event.start < window_.start || event.start >= window_.end) {
        continue;
      }
      const Section section = section_of(event);
      if (section == Section::kNone || reducer.any_around(event.track, event.start)) {
        continue;
      }
      TracedOperator recorded = recorded_operator(trace_, event, section);
      out_.recorded.unshaped += recorded.shaped ? 0 : 1;
      again += section == Section::kBackward && sequence_of(trace_, event) >= 0 ? 1 : 0;
      const Operator& op = recorded.op;
      if (recorded.shaped && op.read == 0 && op.written == 0) {
        continue;  // works on scalars: counted with the operator after it
      }
      items_.push_back(
          {event.start, {event.start, event.end()}, std::nullopt, std::move(recorded.op)});
    }
    if (out_.recorded.unshaped > 0) {
      note(
          "operators without shapes in the trace (record_shapes=True records them) have no sizes "
          "in the workload",
          Severity::kNote, out_.recorded.unshaped);
    }
    if (again > 0) {
      note(std::string(kUnnamedCheckpoints), Severity::kNote, again);
    }
    find_batch(trace_, window_, out_.recorded.workload);
    const auto hook = [&](Nanoseconds time, Hook kind) {
      items_.push_back({time, {time, time}, kind, {}});
    };
    hook(pass().forward.start, Hook::kRootPreForward);
    hook(pass().forward.start, Hook::kPreForward);
    hook(pass().forward.end, Hook::kPostForward);
    hook(pass().backward.start, Hook::kPreBackward);
    hook(pass().backward.end, Hook::kBackwardEnd);
    if (!optimizers_.empty()) {
      hook(window_.end, Hook::kOptimizerDone);
    }
    std::stable_sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) {
      return a.time != b.time ? a.time < b.time : a.hook.has_value() && !b.hook.has_value();
    });
  }

  void place() {
    RecoveredWorkload& recorded = out_.recorded;
    plan::Workload& workload = recorded.workload;
    recorded.window = window_;
    for (Item& item : items_) {
      recorded.times.push_back(item.when);
      if (item.hook) {
        workload.order.push_back(
            {plan::WorkloadItem::Kind::kHook, static_cast<uint32_t>(workload.hooks.size())});
        workload.hooks.emplace_back();
        workload.hooks.back().hook = *item.hook;
      } else {
        workload.order.push_back({plan::WorkloadItem::Kind::kOperator,
                                  static_cast<uint32_t>(workload.operators.size())});
        starts_.push_back(item.time);
        workload.operators.push_back(std::move(item.op));
      }
    }
  }

  [[nodiscard]] size_t forward_operators() const {
    const auto& operators = out_.recorded.workload.operators;
    return static_cast<size_t>(
        std::count_if(operators.begin(), operators.end(), [](const Operator& op) {
          return op.phase == plan::Phase::kForward || op.phase == plan::Phase::kLoss;
        }));
  }

  // When each element of `parameters` is ready, and the autograd node that computed its gradient
  // (kNoIndex: not in the trace).
  struct Ready {
    Nanoseconds time;
    uint32_t node;
  };
  [[nodiscard]] std::vector<Ready> readies() const {
    std::vector<Ready> out;
    for (const DdpBucket& bucket : pass().buckets) {
      if (!by_gradient()) {
        out.push_back({bucket.when.start,
                       bucket.gradients.empty() ? trace::kNoIndex : bucket.gradients.back().node});
        continue;
      }
      for (const DdpGradient& gradient : bucket.gradients) {
        out.push_back({gradient.when.start, gradient.node});
      }
    }
    if (!gradients_of_.empty()) {  // a parameter is ready with the last of its gradients
      std::vector<Ready> last;
      size_t end = 0;
      for (const size_t gradients : gradients_of_) {
        end += gradients;
        last.push_back(out.at(end - 1));
      }
      return last;
    }
    return out;
  }

  // By "Sequence number": when the forward operator with this number began.
  [[nodiscard]] std::map<int64_t, Nanoseconds> forward_sequences() const {
    std::map<int64_t, Nanoseconds> out;
    for (const Event& event : trace_.events) {
      if (event.category == Category::kCpuOp && event.track == pass().forward_track &&
          event.start >= pass().forward.start && event.start < pass().backward.start) {
        if (const int64_t number = sequence_of(trace_, event); number >= 0) {
          const auto [it, fresh] = out.try_emplace(number, event.start);
          it->second = std::min(it->second, event.start);
        }
      }
    }
    return out;
  }

  // [Note: Order of gradients] The planned backward runs operators and completes gradients from the
  // forward's last operator to its first. So a recorded gradient is assigned to the forward
  // operator that it comes from, or to an earlier operator if a previous gradient was already
  // assigned to it or to one before it. The backward operators until the gradient was complete are
  // assigned to the same forward operator. The plan then repeats the recorded order, whatever order
  // autograd used.
  void attach() {
    std::vector<Operator>& operators = out_.recorded.workload.operators;
    const std::vector<Ready> ready = readies();
    if (out_.parameters.empty() || ready.size() != out_.parameters.size()) {
      return;
    }
    const auto forward = static_cast<int64_t>(forward_operators());
    const auto count = static_cast<int64_t>(ready.size());
    const std::map<int64_t, Nanoseconds> sequences = forward_sequences();
    const int64_t rest = forward > count ? 1 : 0;  // reserved for operators after the last gradient
    std::vector<int32_t> owner;
    int64_t before = forward;
    for (int64_t i = 0; i < count; ++i) {
      int64_t natural = forward * (count - i) / (count + 1);
      const uint32_t node = ready[static_cast<size_t>(i)].node;
      const auto found = node == trace::kNoIndex
                             ? sequences.end()
                             : sequences.find(sequence_of(trace_, trace_.events[node]));
      if (found != sequences.end()) {
        natural = std::lower_bound(starts_.begin(), starts_.begin() + forward, found->second) -
                  starts_.begin();
      }
      before = std::clamp(natural, count - 1 - i + rest, before - 1);
      owner.push_back(static_cast<int32_t>(before));
      operators[static_cast<size_t>(before)].module =
          out_.parameters[static_cast<size_t>(i)].module;
    }
    owner.push_back(rest == 1 ? static_cast<int32_t>(before - 1) : owner.back());
    for (size_t i = 0; i < operators.size(); ++i) {
      if (operators[i].phase == plan::Phase::kBackward) {
        const auto next =
            std::lower_bound(ready.begin(), ready.end(), starts_[i],
                             [](const Ready& each, Nanoseconds time) { return each.time < time; });
        operators[i].forward = owner[static_cast<size_t>(next - ready.begin())];
      }
    }
  }

  void say_unknown() {
    const bool named =
        std::any_of(out_.buckets.begin(), out_.buckets.end(),
                    [](const RecoveredBucket& each) { return !each.modules.empty(); });
    if (!named) {
      note(
          "DDP records no names of parameters: with_stack=True records the modules of a bucket's "
          "gradients");
    }
    if (trace_.metadata.world_size.value_or(1) < 2) {
      note("the trace has a world size of one: its all-reduces move no data");
    }
    note("static_graph cannot be read from a trace of later steps: false is assumed");
  }

  const Trace& trace_;
  const DdpLog& log_;
  size_t pass_ = 0, first_ = 0;  // the chosen pass, and the first of its step's microbatches
  Interval window_;
  std::vector<Interval> optimizers_;
  std::vector<Item> items_;
  std::vector<Nanoseconds> starts_;  // start times of the workload's operators
  // How many gradients each element of `parameters` is; empty: one each, or those of a bucket.
  std::vector<size_t> gradients_of_;
  RecoveredPlan out_;
};

}  // namespace

RecoveredPlan recover_ddp(const Trace& trace, const DdpLog& log) {
  return DdpRecovery(trace, log).run();
}

}  // namespace shardlens::analysis
