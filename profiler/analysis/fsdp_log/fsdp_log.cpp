#include "profiler/analysis/fsdp_log/fsdp_log.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "profiler/analysis/events/names.h"
#include "profiler/analysis/events/nesting.h"

namespace shardlens::analysis {
namespace {

using trace::Category;
using trace::Event;
using trace::EventPhase;
using trace::Trace;

// Ranges of PyTorch FSDP2 and of Shardlens's engine, which contain unit names.
class NamedRanges {
 public:
  NamedRanges(const Trace& trace, FsdpLog& log) : trace_(trace), log_(log) {}

  void read() {
    std::vector<uint32_t> ranges = by_track_and_start(trace_, [&](const Event& e) {
      return e.category == Category::kUserAnnotation && trace_.name(e).starts_with("FSDP::");
    });
    // Backward runs on another thread than forward, but never at the same time.
    std::stable_sort(ranges.begin(), ranges.end(), [&](uint32_t a, uint32_t b) {
      const Event &x = trace_.events[a], &y = trace_.events[b];
      return x.start != y.start ? x.start < y.start : x.duration > y.duration;
    });
    for (const uint32_t index : ranges) {
      add(trace_.events[index]);
    }
  }

 private:
  struct Open {
    Nanoseconds end;
    uint32_t track;
    bool is_hook;
    std::optional<uint32_t> prefetched;  // target of a prefetch range
  };

  void add(const Event& event) {
    while (!open_.empty() && open_.back().end <= event.start) {
      open_.pop_back();
    }
    const auto range = parse_fsdp_range(trace_.name(event));
    const std::string_view what = range->what;
    if (what == "root_pre_forward") {
      ++passes_;
      backward_ = false;
    }
    Open open{event.end(), event.track, false, std::nullopt};
    if (range->fqn) {
      const uint32_t unit = log_.unit_id(*range->fqn);
      if (what.ends_with("_prefetch")) {
        open.prefetched = unit;
        const bool nested =
            std::any_of(open_.begin(), open_.end(), [](const Open& o) { return o.is_hook; });
        log_.prefetches.push_back({hook_unit_, unit, what == "backward_prefetch",
                                   !nested || what == "forward_prefetch", event.start, pass()});
      } else {
        open.is_hook = what == "pre_forward" || what == "pre_backward";
        add_call(event, what, unit);
      }
    }
    open_.push_back(open);
  }

  void add_call(const Event& event, std::string_view what, uint32_t unit) {
    FsdpCall call{};
    if (what == "pre_forward") {
      call = FsdpCall::kPreForward;
      backward_ = false;
    } else if (what == "post_forward") {
      call = FsdpCall::kPostForward;
    } else if (what == "pre_backward") {
      call = FsdpCall::kPreBackward;
      backward_ = true;
    } else if (what == "all_gather") {
      call = FsdpCall::kUnshard;
    } else if (what == "all_gather_copy_out") {
      call = FsdpCall::kCopyOut;
    } else if (what == "post_backward_reduce") {
      call = FsdpCall::kReduce;
    } else if (what == "post_backward_reshard") {
      call = FsdpCall::kPostBackward;
    } else {
      return;
    }
    if (what == "pre_forward" || what == "pre_backward") {
      hook_unit_ = unit;
    }
    FsdpEvent out;
    out.call = call;
    out.backward = backward_;
    out.unit = unit;
    out.hook_unit = hook_unit_;
    out.track = event.track;
    out.when = {event.start, event.end()};
    out.pass = pass();
    if (call == FsdpCall::kUnshard) {
      out.unshard_by = unshard_by(unit);
    }
    log_.events.push_back(out);
  }

  [[nodiscard]] UnshardBy unshard_by(uint32_t unit) const {
    if (log_.source == FsdpSource::kShardlens &&
        unit != hook_unit_) {  // it writes no prefetch ranges
      return backward_ ? UnshardBy::kBackwardPrefetch : UnshardBy::kForwardPrefetch;
    }
    for (size_t i = open_.size(); i-- > 0;) {
      if (open_[i].prefetched) {
        const bool in_hook =
            std::any_of(open_.begin(), open_.begin() + static_cast<std::ptrdiff_t>(i),
                        [](const Open& o) { return o.is_hook; });
        return !backward_ ? UnshardBy::kForwardPrefetch
               : in_hook  ? UnshardBy::kBackwardPrefetch
                          : UnshardBy::kExplicitPrefetch;
      }
    }
    return UnshardBy::kOwn;
  }

  [[nodiscard]] uint32_t pass() const { return passes_ == 0 ? 0 : passes_ - 1; }

  const Trace& trace_;
  FsdpLog& log_;
  std::vector<Open> open_;
  uint32_t hook_unit_ = 0, passes_ = 0;
  bool backward_ = false;
};

// The number of elements of one tensor, or the sum over a list of tensors ("[[2, 3], [4]]").
int64_t numel(const nlohmann::json& dims) {
  if (!dims.is_array() || dims.empty()) {
    return -1;
  }
  if (dims.front().is_array()) {
    int64_t sum = 0;
    for (const auto& each : dims) {
      sum += std::max<int64_t>(0, numel(each));
    }
    return sum;
  }
  int64_t product = 1;
  for (const auto& size : dims) {
    if (!size.is_number_integer() ||
        __builtin_mul_overflow(product, size.get<int64_t>(), &product)) {
      return -1;
    }
  }
  return product;
}

// Sets the parent of each unit: the unit with the longest name that is a prefix.
void set_parents(FsdpLog& log) {
  for (FsdpUnit& unit : log.units) {
    size_t longest = 0;
    for (uint32_t i = 0; i < log.units.size(); ++i) {
      const std::string& fqn = log.units[i].fqn;
      const bool around = fqn != unit.fqn && (fqn.empty() || unit.fqn.starts_with(fqn + "."));
      if (around && (!unit.parent || fqn.size() > longest)) {
        unit.parent = i;
        longest = fqn.size();
      }
    }
  }
}

}  // namespace

std::optional<DType> recorded_dtype(std::string_view name) {
  constexpr std::pair<std::string_view, DType> kNames[] = {
      {"float", DType::kF32},  {"c10::BFloat16", DType::kBF16}, {"c10::Half", DType::kF16},
      {"double", DType::kF64}, {"long int", DType::kI64},       {"int", DType::kI32},
      {"bool", DType::kBool}};
  for (const auto& [text, dtype] : kNames) {
    if (name == text) {
      return dtype;
    }
  }
  return parse_dtype(name);
}

Bytes CallSize::bytes(std::optional<CollectiveKind> kind, int64_t ranks) const {
  if (out < 0 && kind == CollectiveKind::kAllGather && ranks == 0) {
    return 0;  // the output is larger by an unknown factor
  }
  int64_t most = in, bytes = 0;
  if (out < 0 && kind == CollectiveKind::kAllGather && __builtin_mul_overflow(in, ranks, &most)) {
    return 0;
  }
  most = std::max(most, out);
  const std::optional<Bytes> each = dtype ? std::optional(size_of(*dtype)) : element;
  return each && most > 0 && !__builtin_mul_overflow(most, *each, &bytes) ? bytes : 0;
}

CallSize call_size(const Trace& trace, const Event& call) {
  CallSize size;
  if (const trace::CollectiveArgs* args = trace.collective(call)) {
    const std::string_view dtype = trace.strings.view(args->dtype);
    return {args->in_nelems, args->out_nelems, recorded_dtype(dtype), element_size(dtype)};
  }
  const std::string_view text = trace.args_json(call);
  const nlohmann::json args =
      text.empty() ? nlohmann::json() : nlohmann::json::parse(text, nullptr, false);
  if (!args.is_object() || !args.contains("Input Dims") || !args["Input Dims"].is_array()) {
    return size;
  }
  // The "base" forms have the output first and then the input. The list forms have a list of
  // outputs, whose dims are not recorded, and then the inputs.
  const nlohmann::json& dims = args["Input Dims"];
  const std::string_view name = trace.name(call);
  const bool in_place = name.find("allreduce") != std::string_view::npos;
  if (!dims.empty()) {
    size.out = numel(dims[0]);
  }
  size.in = in_place ? size.out : dims.size() > 1 ? numel(dims[1]) : -1;
  if (args.contains("Input type") && args["Input type"].is_array()) {
    for (const auto& type : args["Input type"]) {
      const std::string dtype = type.is_string() ? type.get<std::string>() : "";
      size.dtype = recorded_dtype(dtype);
      size.element = element_size(dtype);
      if (size.element) {
        break;
      }
    }
  }
  return size;
}

uint32_t FsdpLog::unit_id(std::string_view fqn) {
  for (uint32_t i = 0; i < units.size(); ++i) {
    if (units[i].fqn == fqn) {
      return i;
    }
  }
  units.push_back({std::string(fqn), std::nullopt});
  return static_cast<uint32_t>(units.size() - 1);
}

const FsdpEvent* FsdpLog::collective_at(uint32_t track, Nanoseconds instant) const {
  auto after = std::upper_bound(events.begin(), events.end(), instant,
                                [](Nanoseconds t, const FsdpEvent& e) { return t < e.when.start; });
  // Few events overlap: only hooks and the calls that they make.
  for (int looked = 0; after != events.begin() && looked < 64; ++looked) {
    --after;
    const bool calls = after->call == FsdpCall::kUnshard || after->call == FsdpCall::kReduce;
    if (calls && after->track == track && instant < after->when.end) {
      return &*after;
    }
  }
  return nullptr;
}

FsdpLog read_fsdp_log(const Trace& trace) {
  FsdpLog log;
  for (const Event& event : trace.events) {
    if (event.category != Category::kUserAnnotation || event.phase != EventPhase::kComplete) {
      continue;
    }
    const std::string_view name = trace.name(event);
    if (name.starts_with("FSDP::")) {
      log.source = trace.units.empty() ? FsdpSource::kFsdp2 : FsdpSource::kShardlens;
      break;
    }
    if (name.starts_with("FullyShardedDataParallel.")) {
      log.source = FsdpSource::kFsdp1;
      break;
    }
  }
  if (log.source == FsdpSource::kFsdp1) {
    read_fsdp1(trace, log);
  } else if (log.source != FsdpSource::kNone) {
    for (const std::string& fqn : trace.units) {
      log.units.push_back({fqn, std::nullopt});
    }
    NamedRanges(trace, log).read();
    set_parents(log);
  }
  std::stable_sort(
      log.events.begin(), log.events.end(),
      [](const FsdpEvent& a, const FsdpEvent& b) { return a.when.start < b.when.start; });
  return log;
}

}  // namespace shardlens::analysis
