#include "profiler/analysis/fsdp_log/ddp_log.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <unordered_set>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/base/collective.h"
#include "core/json/json_values.h"
#include "profiler/analysis/events/names.h"
#include "profiler/analysis/events/nesting.h"
#include "profiler/analysis/fsdp_log/fsdp_log.h"

namespace shardlens::analysis {
namespace {

using trace::Category;
using trace::Event;
using trace::EventPhase;
using trace::Trace;

constexpr std::string_view kCopyInPrefix = "torch::distributed::reducer::";
constexpr std::string_view kReducerPrefix = "torch.distributed.ddp.reducer::";
constexpr std::string_view kNodePrefix = "autograd::engine::evaluate_function: ";
constexpr std::string_view kModulePrefix = "nn.Module: ";

// The meaning of an event for DDP.
enum class DdpMark : uint8_t {
  kNone,
  kForward,
  kOwnForward,  // forward of Shardlens's engine, replicated or not
  kNode,
  kAccumulateNode,
  kAccumulate,  // the operator within that node, whose input is the gradient
  kCopyIn,
  kCopyOut,
  kReducer,
  kCall,      // call of an all-reduce
  kBoundary,  // no backward continues after it
};

DdpMark mark_of(Category category, std::string_view name) {
  if (category == Category::kUserAnnotation) {
    return name == "DistributedDataParallel.forward"                         ? DdpMark::kForward
           : name == "shardlens::forward"                                    ? DdpMark::kOwnForward
           : name.starts_with("Optimizer.step") || parse_profiler_step(name) ? DdpMark::kBoundary
                                                                             : DdpMark::kNone;
  }
  if (category != Category::kCpuOp) {
    return DdpMark::kNone;
  }
  if (name.starts_with(kNodePrefix)) {
    return name.ends_with("AccumulateGrad") ? DdpMark::kAccumulateNode : DdpMark::kNode;
  }
  if (name == "torch::autograd::AccumulateGrad") {
    return DdpMark::kAccumulate;
  }
  if (name.starts_with(kCopyInPrefix)) {
    return DdpMark::kCopyIn;
  }
  if (name.starts_with(kReducerPrefix)) {
    return name.ends_with("copy_bucket_to_grad") ? DdpMark::kCopyOut : DdpMark::kReducer;
  }
  const bool call =
      name.starts_with("c10d::") && parse_collective(name) == CollectiveKind::kAllReduce;
  return call ? DdpMark::kCall : DdpMark::kNone;
}

// Finds the module of a gradient. The autograd node before the gradient has the sequence number of
// the forward operator that it differentiates, and that operator is within the module's range.
class GradientModules {
 public:
  explicit GradientModules(const Trace& trace)
      : trace_(trace),
        ranges_(trace, [&](const Event& e) { return trace.name(e).starts_with(kModulePrefix); }) {
    named_ = std::any_of(trace.events.begin(), trace.events.end(),
                         [&](const Event& e) { return trace.name(e).starts_with(kModulePrefix); });
  }

  // Indexes the operators of a forward, to which the autograd nodes of the following backward
  // refer.
  void learn(const Interval& forward) {
    forward_.clear();
    if (!named_) {
      return;
    }
    if (operators_.empty()) {
      for (uint32_t i = 0; i < trace_.events.size(); ++i) {
        if (trace_.events[i].category == Category::kCpuOp) {
          operators_.push_back(i);
        }
      }
      std::stable_sort(operators_.begin(), operators_.end(), [&](uint32_t a, uint32_t b) {
        return trace_.events[a].start < trace_.events[b].start;
      });
    }
    const auto first =
        std::lower_bound(operators_.begin(), operators_.end(), forward.start,
                         [&](uint32_t i, Nanoseconds t) { return trace_.events[i].start < t; });
    for (auto i = first; i != operators_.end() && trace_.events[*i].start < forward.end; ++i) {
      if (const int64_t number = sequence_of(trace_, trace_.events[*i]); number >= 0) {
        forward_.try_emplace(number, *i);
      }
    }
  }

  [[nodiscard]] std::string of(const Event& node) const {
    const auto found = named_ ? forward_.find(sequence_of(trace_, node)) : forward_.end();
    if (found == forward_.end()) {
      return {};
    }
    const Event& op = trace_.events[found->second];
    const auto around = ranges_.innermost(op.track, op.start);
    return around ? std::string(trace_.name(trace_.events[*around]).substr(kModulePrefix.size()))
                  : std::string();
  }

 private:
  const Trace& trace_;
  RangeFinder ranges_;
  bool named_ = false;
  std::vector<uint32_t> operators_;  // all, by start; filled at first use
  std::map<int64_t, uint32_t> forward_;
};

class DdpReader {
 public:
  explicit DdpReader(const Trace& trace) : trace_(trace) {}

  DdpLog read() {
    find_marks();
    if (!is_ddp_) {
      return {};
    }
    GradientModules modules(trace_);
    for (const Mark& mark : marks_) {
      apply(mark, modules);
    }
    close();
    return std::move(log_);
  }

 private:
  struct Mark {
    uint32_t event;
    DdpMark kind;
  };

  void find_marks() {
    std::vector<std::pair<bool, DdpMark>> known(trace_.strings.size() * 2);
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      const Event& event = trace_.events[i];
      const trace::ActionArgs* action =
          event.category == Category::kShardlens ? trace_.action(event) : nullptr;
      if (action != nullptr && action->action.op == schedule::Op::kAllReduce) {
        launches_.push_back(event.start);
      }
      if (event.phase != EventPhase::kComplete ||
          (event.category != Category::kCpuOp && event.category != Category::kUserAnnotation)) {
        continue;
      }
      auto& [seen, kind] =
          known[size_t{event.name} * 2 + (event.category == Category::kCpuOp ? 0 : 1)];
      if (!seen) {
        seen = true;
        kind = mark_of(event.category, trace_.name(event));
      }
      if (kind != DdpMark::kNone) {
        marks_.push_back({i, kind});
        is_ddp_ = is_ddp_ || kind == DdpMark::kForward || kind == DdpMark::kCopyIn ||
                  kind == DdpMark::kCopyOut || kind == DdpMark::kReducer;
        has_forward_ = has_forward_ || kind == DdpMark::kForward || kind == DdpMark::kOwnForward;
        copies_in_ = copies_in_ || kind == DdpMark::kCopyIn;
      }
    }
    std::sort(launches_.begin(), launches_.end());
    std::stable_sort(marks_.begin(), marks_.end(), [&](const Mark& a, const Mark& b) {
      const Event &x = trace_.events[a.event], &y = trace_.events[b.event];
      return x.start != y.start ? x.start < y.start : x.duration > y.duration;
    });
  }

  void apply(const Mark& mark, GradientModules& modules) {
    const Event& event = trace_.events[mark.event];
    const Interval when{event.start, event.end()};
    const bool forward = mark.kind == DdpMark::kForward || mark.kind == DdpMark::kOwnForward;
    if (forward && (!open_ || event.start >= pass_.forward.end)) {
      begin(when, event.track);  // a forward within a forward is part of the outer one
      return;
    }
    if (mark.kind == DdpMark::kBoundary) {
      close();
      if (!has_forward_) {  // the Reducer is used without the DDP module
        begin({event.start, event.start}, event.track);
      }
      return;
    }
    if (!open_ || event.start < pass_.forward.end) {
      return;
    }
    switch (mark.kind) {
      case DdpMark::kNode:
        if (pass_.backward.length() == 0) {
          modules.learn({pass_.forward.start, event.start});
        }
        node(when, event.track);
        node_ = mark.event;
        break;
      case DdpMark::kAccumulateNode:
        node(when, event.track);
        accumulates_until_ = when.end;
        break;
      case DdpMark::kAccumulate:
        if (!copies_in_) {
          gradient(event, modules);
        }
        break;
      case DdpMark::kCopyIn:
        extend(when);
        pass_.copies_in.push_back(when);
        gradient(event, modules);
        break;
      case DdpMark::kCopyOut:
        extend(when);
        pass_.copies_out.push_back(when);
        break;
      case DdpMark::kCall:
        call(mark.event);
        break;
      default:
        break;
    }
  }

  void begin(const Interval& forward, uint32_t track) {
    close();
    open_ = true;
    pass_ = {};
    pass_.forward = forward;
    pass_.forward_track = pass_.backward_track = track;
    pass_.backward = {forward.end, forward.end};
    pending_.clear();
    accumulates_until_ = 0;
    gradients_ = 0;
    node_ = trace::kNoIndex;
  }

  void close() {
    if (open_) {
      log_.passes.push_back(std::move(pass_));
    }
    open_ = false;
  }

  void extend(const Interval& when) {
    if (pass_.backward.length() == 0) {
      pass_.backward.start = when.start;
    }
    pass_.backward.end = std::max(pass_.backward.end, when.end);
  }

  void node(const Interval& when, uint32_t track) {
    extend(when);
    pass_.backward_track = track;
    pass_.compute_end = std::max(pass_.compute_end, when.end);
  }

  void gradient(const Event& event, const GradientModules& modules) {
    const CallSize size = call_size(trace_, event);
    pending_.push_back({{event.start, event.end()}, size.out, size.dtype, node_, {}});
    if (node_ != trace::kNoIndex) {
      pending_.back().module = modules.of(trace_.events[node_]);
    }
    ++gradients_;
  }

  void call(uint32_t index) {
    const Event& event = trace_.events[index];
    const bool by_reducer = event.start < accumulates_until_ || !pending_.empty();
    if (!by_reducer) {
      return;  // called by the training loop: gradient norm, metrics
    }
    const Interval when{event.start, event.end()};
    extend(when);
    DdpBucket bucket{index, event.track, when, -1, std::nullopt, {}};
    const CallSize size = size_of_call(event);
    bucket.numel = size.out;
    bucket.dtype = size.dtype;
    if (!launches_.empty() && !launches_within(when)) {
      pass_.reduces_used_map = true;  // Shardlens's engine has an action for each bucket
      return;
    }
    const bool integers = size.dtype == DType::kI32 || size.dtype == DType::kI64;
    if (pending_.empty() && (integers || (size.out == gradients_ && !pass_.buckets.empty()))) {
      pass_.reduces_used_map = true;
      return;
    }
    const int64_t sum = std::accumulate(
        pending_.begin(), pending_.end(), int64_t{0},
        [](int64_t before, const DdpGradient& each) { return before + each.numel; });
    const bool all_known = std::all_of(pending_.begin(), pending_.end(),
                                       [](const DdpGradient& each) { return each.numel >= 0; });
    if (!all_known || bucket.numel < 0 || sum == bucket.numel) {
      bucket.gradients = std::move(pending_);
    }
    pending_.clear();
    if (!bucket.gradients.empty()) {  // calls of before torch 2.1 have no sizes
      bucket.numel = bucket.numel < 0 && all_known ? sum : bucket.numel;
      bucket.dtype = bucket.dtype ? bucket.dtype : bucket.gradients.front().dtype;
    }
    pass_.buckets.push_back(std::move(bucket));
  }

  [[nodiscard]] bool launches_within(const Interval& call) const {
    const auto first = std::lower_bound(launches_.begin(), launches_.end(), call.start);
    return first != launches_.end() && *first < call.end;
  }

  // For NCCL, the sizes are in the record_param_comms within the call.
  [[nodiscard]] CallSize size_of_call(const Event& call) {
    if (records_.empty() && !looked_for_records_) {
      looked_for_records_ = true;
      records_ = by_track_and_start(trace_, [&](const Event& e) {
        return e.category == Category::kCpuOp && trace_.name(e) == "record_param_comms";
      });
    }
    const auto within = std::lower_bound(
        records_.begin(), records_.end(), call, [&](uint32_t index, const Event& around) {
          const Event& record = trace_.events[index];
          return record.track != around.track ? record.track < around.track
                                              : record.start < around.start;
        });
    if (within != records_.end()) {
      const Event& record = trace_.events[*within];
      if (record.track == call.track && record.start < call.end() &&
          trace_.collective(record) != nullptr) {
        return call_size(trace_, record);
      }
    }
    return call_size(trace_, call);
  }

  const Trace& trace_;
  std::vector<Mark> marks_;  // by time
  bool is_ddp_ = false, has_forward_ = false, copies_in_ = false;
  std::vector<Nanoseconds> launches_;  // Shardlens's all-reduce actions, by time
  std::vector<uint32_t> records_;
  bool looked_for_records_ = false;
  DdpLog log_;
  // The pass that is being read.
  bool open_ = false;
  DdpPass pass_;
  std::vector<DdpGradient> pending_;  // gradients not yet in a bucket
  Nanoseconds accumulates_until_ = 0;
  int64_t gradients_ = 0;
  uint32_t node_ = trace::kNoIndex;  // the latest node that is not AccumulateGrad
};

}  // namespace

int64_t sequence_of(const Trace& trace, const Event& event) {
  constexpr std::string_view kKey = "\"Sequence number\"";
  const std::string_view text = trace.args_json(event);
  if (text.find(kKey) == std::string_view::npos) {
    return -1;
  }
  const auto args = nlohmann::json::parse(text, nullptr, false);
  const auto found = args.is_object() ? args.find("Sequence number") : args.end();
  return args.is_object() && found != args.end() ? plan::integer_of(*found).value_or(-1) : -1;
}

bool is_reducer_range(std::string_view name) {
  return name.starts_with(kCopyInPrefix) || name.starts_with(kReducerPrefix);
}

std::optional<DdpLog::Place> DdpLog::bucket_at(uint32_t track, Nanoseconds instant) const {
  auto pass =
      std::upper_bound(passes.begin(), passes.end(), instant,
                       [](Nanoseconds t, const DdpPass& each) { return t < each.forward.start; });
  if (pass == passes.begin()) {
    return std::nullopt;
  }
  --pass;
  auto bucket =
      std::partition_point(pass->buckets.begin(), pass->buckets.end(),
                           [&](const DdpBucket& each) { return each.when.start <= instant; });
  // Calls of several threads overlap, but few at once.
  for (int looked = 0; bucket != pass->buckets.begin() && looked < 64; ++looked) {
    --bucket;
    if (bucket->track == track && instant < bucket->when.end) {
      return Place{static_cast<size_t>(pass - passes.begin()),
                   static_cast<size_t>(bucket - pass->buckets.begin())};
    }
  }
  return std::nullopt;
}

std::string DdpLog::name_of(const Place& place) const {
  constexpr size_t kNamed = 4;  // as in schedule::bucket_name
  std::vector<std::string_view> modules;
  std::unordered_set<std::string_view> seen;
  for (const DdpGradient& each : passes[place.pass].buckets[place.bucket].gradients) {
    if (!each.module.empty() && seen.insert(each.module).second) {
      modules.emplace_back(each.module);
    }
  }
  std::string name = "bucket " + std::to_string(place.bucket);
  for (size_t i = 0; i < modules.size(); ++i) {
    if (i + 1 == kNamed && modules.size() > kNamed) {
      return name + ", " + std::to_string(modules.size() - i) + " more)";
    }
    name += (i == 0 ? " (" : ", ") + std::string(modules[i]);
  }
  return modules.empty() ? name : name + ")";
}

DdpLog read_ddp_log(const Trace& trace) {
  return DdpReader(trace).read();
}

}  // namespace shardlens::analysis
