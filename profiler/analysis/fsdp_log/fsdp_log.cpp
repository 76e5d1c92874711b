#include "profiler/analysis/fsdp_log/fsdp_log.h"

#include <algorithm>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/json/json_values.h"
#include "core/plan/parameter_groups.h"
#include "profiler/analysis/events/names.h"
#include "profiler/analysis/events/near_search.h"
#include "profiler/analysis/events/nesting.h"
#include "profiler/analysis/events/sort_runs.h"
#include "profiler/analysis/fsdp_log/joined_forwards.h"
#include "profiler/analysis/fsdp_log/recorded_names.h"

namespace shardlens::analysis {
namespace {

using trace::Event;
using trace::Trace;

// Ranges of PyTorch FSDP2 and of Shardlens's engine, which contain unit names.
class NamedRanges {
 public:
  NamedRanges(const Trace& trace, FsdpLog& log)
      : trace_(trace), log_(log), named_(trace.strings.size()) {}

  void read(const EventLists& lists) {
    std::vector<Range> ranges;
    bool names_ranks = false;
    // Called once for each name.
    const auto is_range = [&](std::string_view name) {
      has_callbacks_ = has_callbacks_ || name == "FSDP::root_post_backward_callback";
      names_ranks = names_ranks || name.ends_with(']');
      return name.starts_with("FSDP::");
    };
    lists.for_ranges_named(trace_, is_range, [&](const Range& range) { ranges.push_back(range); });
    if (names_ranks) {
      find_groups(ranges);
    }
    // Backward runs on another thread than forward, but never at the same time.
    sort_runs(ranges, [](const Range& a, const Range& b) {
      return a.start != b.start ? a.start < b.start : a.end > b.end;
    });
    log_.events.reserve(ranges.size());
    for (const Range& range : ranges) {
      add(range);
    }
  }

 private:
  using Range = EventLists::Range;
  enum class Prefetch : uint8_t { kNone, kInHook, kOutsideHooks };
  enum class What : uint8_t;
  struct Named {  // the meaning of a name
    bool known = false, has_unit = false;
    What what{};
    uint32_t unit = 0;
  };
  // An open range. What holds for the ranges around it is copied, so that nesting costs nothing.
  struct Open {
    Nanoseconds end;
    bool in_hook;       // it or a range around it is a hook
    Prefetch prefetch;  // the innermost prefetch range among it and those around it
  };

  // [Note: Groups in ranges] From torch 2.13 on, ranges of a unit with several groups of parameters
  // name the number of ranks of the group: "FSDP::all_gather (layers.3) [pg=4]". Of two numbers the
  // larger is taken for the dense group, whose parameters are not divided over experts.
  void find_groups(const std::vector<Range>& ranges) {
    for (const Range& each : ranges) {
      const std::string_view name = trace_.strings.view(each.name);
      if (!name.ends_with(']')) {
        continue;
      }
      const auto range = parse_fsdp_range(name);
      if (range && range->fqn && range->ranks > 0) {
        int64_t& most = dense_[name_of(*range)];
        most = std::max(most, range->ranks);
      }
    }
  }

  // The engine's modules have no wrappers, whatever they are called.
  [[nodiscard]] std::string name_of(const FsdpRange& range) const {
    return log_.source == FsdpSource::kFsdp2 ? std::string(without_wrappers(*range.fqn))
                                             : std::string(*range.fqn);
  }

  [[nodiscard]] uint32_t unit_of(const FsdpRange& range) {
    const std::string name = name_of(range);
    const bool expert = range.ranks > 0 && dense_.at(name) != range.ranks;
    return log_.unit_id(expert ? plan::expert_group_of(name) : name);
  }

  enum class What : uint8_t {
    kOther,
    kRootPreForward,
    kRootEnd,
    kForwardPrefetch,
    kBackwardPrefetch,
    kOtherPrefetch,
    kPreForward,
    kPostForward,
    kPreBackward,
    kPostBackward,
    kUnshard,
    kCopyOut,
    kReduce
  };

  [[nodiscard]] static What what_of(std::string_view what) {
    constexpr std::pair<std::string_view, What> kKnown[] = {
        {"root_pre_forward", What::kRootPreForward},
        {"root_post_backward_callback", What::kRootEnd},
        {"forward_prefetch", What::kForwardPrefetch},
        {"backward_prefetch", What::kBackwardPrefetch},
        {"pre_forward", What::kPreForward},
        {"post_forward", What::kPostForward},
        {"pre_backward", What::kPreBackward},
        {"post_backward_reshard", What::kPostBackward},
        {"all_gather", What::kUnshard},
        {"all_gather_copy_out", What::kCopyOut},
        {"post_backward_reduce", What::kReduce}};
    for (const auto& [name, meaning] : kKnown) {
      if (what == name) {
        return meaning;
      }
    }
    return what.ends_with("_prefetch") ? What::kOtherPrefetch : What::kOther;
  }

  [[nodiscard]] const Named& named(trace::StringId name) {
    Named& named = named_[name];
    if (!named.known) {
      named.known = true;
      if (const auto range = parse_fsdp_range(trace_.strings.view(name))) {
        named.what = what_of(range->what);
        named.has_unit = range->fqn.has_value();
        named.unit = named.has_unit ? unit_of(*range) : 0;
      }
    }
    return named;
  }

  void add(const Range& range) {
    while (!open_.empty() && open_.back().end <= range.start) {
      open_.pop_back();
    }
    const Named& named = this->named(range.name);
    const What what = named.what;
    if (what == What::kRootPreForward && !recomputes_) {
      ++passes_;
      backward_ = false;
      in_forward_.clear();
      log_.root_forwards.push_back(range.start);
    } else if (what == What::kRootEnd) {
      recomputes_ = false;
    }
    const bool nested = !open_.empty() && open_.back().in_hook;
    Open open{range.end, nested, open_.empty() ? Prefetch::kNone : open_.back().prefetch};
    if (named.has_unit) {
      if (what == What::kForwardPrefetch || what == What::kBackwardPrefetch ||
          what == What::kOtherPrefetch) {
        open.prefetch = nested ? Prefetch::kInHook : Prefetch::kOutsideHooks;
        log_.prefetches.push_back({hook_unit_, named.unit, what == What::kBackwardPrefetch,
                                   !nested || what == What::kForwardPrefetch, range.start, pass()});
      } else {
        open.in_hook = nested || what == What::kPreForward || what == What::kPreBackward;
        add_call(range, what, named.unit);
      }
    }
    open_.push_back(open);
  }

  // Whether the unit's forward has begun before; begins it.
  [[nodiscard]] bool begin_forward(uint32_t unit) {
    if (unit >= in_forward_.size()) {
      in_forward_.resize(unit + 1);
    }
    const bool before = in_forward_[unit];
    in_forward_[unit] = true;
    return before;
  }
  void end_forward(uint32_t unit) {
    if (unit < in_forward_.size()) {
      in_forward_[unit] = false;
    }
  }

  void add_call(const Range& range, What what, uint32_t unit) {
    FsdpEvent out;
    switch (what) {
      case What::kPreForward:
        // From torch 2.15 on, each module of a unit of several has a pre-forward; the first begins
        // it.
        if (begin_forward(unit) && log_.units[unit].fqn.find(", ") != std::string::npos) {
          return;
        }
        out.call = FsdpCall::kPreForward;
        backward_ = recomputes_;
        hook_unit_ = unit;
        break;
      case What::kPostForward:
        end_forward(unit);
        out.call = FsdpCall::kPostForward;
        break;
      case What::kPreBackward:
        out.call = FsdpCall::kPreBackward;
        backward_ = true;
        recomputes_ = has_callbacks_;
        end_forward(unit);  // a recomputation that stopped early has no post-forward
        hook_unit_ = unit;
        break;
      case What::kUnshard:
        out.call = FsdpCall::kUnshard;
        break;
      case What::kCopyOut:
        out.call = FsdpCall::kCopyOut;
        break;
      case What::kReduce:
        out.call = FsdpCall::kReduce;
        break;
      case What::kPostBackward:
        out.call = FsdpCall::kPostBackward;
        break;
      default:
        return;
    }
    out.backward = backward_;
    out.unit = unit;
    out.hook_unit = hook_unit_;
    out.track = range.track;
    out.when = {range.start, range.end};
    out.pass = pass();
    if (out.call == FsdpCall::kUnshard) {
      out.unshard_by = unshard_by(unit);
    }
    log_.events.push_back(out);
  }

  [[nodiscard]] UnshardBy unshard_by(uint32_t unit) const {
    if (log_.source == FsdpSource::kShardlens &&
        unit != hook_unit_) {  // it writes no prefetch ranges
      return backward_ ? UnshardBy::kBackwardPrefetch : UnshardBy::kForwardPrefetch;
    }
    const Prefetch prefetch = open_.empty() ? Prefetch::kNone : open_.back().prefetch;
    return prefetch == Prefetch::kNone     ? UnshardBy::kOwn
           : !backward_                    ? UnshardBy::kForwardPrefetch
           : prefetch == Prefetch::kInHook ? UnshardBy::kBackwardPrefetch
                                           : UnshardBy::kExplicitPrefetch;
  }

  [[nodiscard]] uint32_t pass() const { return passes_ == 0 ? 0 : passes_ - 1; }

  const Trace& trace_;
  FsdpLog& log_;
  std::vector<Named> named_;  // by StringId
  std::vector<Open> open_;
  std::map<std::string, int64_t> dense_;  // by unit: ranks of its dense group
  std::vector<bool> in_forward_;          // by unit: its forward has begun
  uint32_t hook_unit_ = 0, passes_ = 0;
  bool backward_ = false;
  bool has_callbacks_ = false;  // the trace shows the end of backward
  // A backward has begun and not ended: forwards within it are those of activation checkpoints.
  // They begin as any other, an inner unit's even with a range of the root's forward.
  bool recomputes_ = false;
};

// No message has more elements. Larger numbers are read as not known, so that sums of sizes fit in
// 64 bits.
constexpr int64_t kMostElements = int64_t{1} << 40;

int64_t plausible(int64_t elements) {
  return elements > kMostElements ? -1 : elements;
}

// The number of elements of one tensor, or the sum over a list of tensors ("[[2, 3], [4]]").
int64_t numel(const nlohmann::json& dims) {
  if (!dims.is_array() || dims.empty()) {
    return -1;
  }
  if (dims.front().is_array()) {
    int64_t sum = 0;
    for (const auto& each : dims) {
      sum = plausible(sum + std::max<int64_t>(0, numel(each)));
      if (sum < 0) {
        return -1;
      }
    }
    return sum;
  }
  int64_t product = 1;
  for (const auto& size : dims) {
    const std::optional<int64_t> value = plan::integer_of(size);
    if (!value || __builtin_mul_overflow(product, *value, &product)) {
      return -1;
    }
  }
  return plausible(product);
}

// Sets the parent of each unit: the unit with the longest name that is a prefix, up to a dot.
void set_parents(FsdpLog& log) {
  constexpr int kDeepest = 256;  // no module is this many levels below its unit's parent
  for (FsdpUnit& unit : log.units) {
    std::string_view prefix = plan::unit_of_group(unit.fqn);
    if (prefix.size() < unit.fqn.size()) {
      unit.parent = log.find_unit(prefix);
    }
    for (int level = 0; level < kDeepest && !prefix.empty() && !unit.parent; ++level) {
      const size_t dot = prefix.rfind('.');
      prefix = prefix.substr(0, dot == std::string_view::npos ? 0 : dot);
      unit.parent = log.find_unit(prefix);
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
  most = plausible(std::max(most, out));
  const std::optional<Bytes> each = dtype ? std::optional(size_of(*dtype)) : element;
  return each && most > 0 && !__builtin_mul_overflow(most, *each, &bytes) ? bytes : 0;
}

CallSize call_size(const Trace& trace, const Event& call) {
  CallSize size;
  if (const trace::CollectiveArgs* args = trace.collective(call)) {
    const std::string_view dtype = trace.strings.view(args->dtype);
    return {plausible(args->in_nelems), plausible(args->out_nelems), recorded_dtype(dtype),
            element_size(dtype)};
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

std::optional<uint32_t> FsdpLog::find_unit(std::string_view fqn) {
  for (; known_ < units.size(); ++known_) {
    ids_.emplace(units[known_].fqn, static_cast<uint32_t>(known_));
  }
  const auto found = ids_.find(std::string(fqn));
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

uint32_t FsdpLog::unit_id(std::string_view fqn) {
  if (const auto known = find_unit(fqn)) {
    return *known;
  }
  units.push_back({std::string(fqn), std::nullopt});
  return static_cast<uint32_t>(units.size() - 1);
}

void FsdpLog::index_collectives() {
  calls_.clear();
  for (uint32_t i = 0; i < events.size(); ++i) {
    const FsdpEvent& e = events[i];
    if (e.call == FsdpCall::kUnshard || e.call == FsdpCall::kReduce) {
      const Nanoseconds before = calls_.empty() ? e.when.end : calls_.back().latest_end;
      calls_.push_back({e.when, std::max(before, e.when.end), e.track, i});
    }
  }
}

const FsdpEvent* FsdpLog::collective_at(uint32_t track, Nanoseconds instant, size_t& near) const {
  near = partition_near(calls_, near, [&](const Call& c) { return c.when.start <= instant; });
  // Few calls overlap.
  constexpr size_t kMost = 64;
  for (size_t i = near; i-- > 0 && near - i <= kMost && calls_[i].latest_end > instant;) {
    if (calls_[i].track == track && instant < calls_[i].when.end) {
      return &events[calls_[i].event];
    }
  }
  return nullptr;
}

const FsdpEvent* FsdpLog::collective_at(uint32_t track, Nanoseconds instant) const {
  size_t near = calls_.size() / 2;
  return collective_at(track, instant, near);
}

FsdpLog read_fsdp_log(const Trace& trace, const EventLists& lists) {
  FsdpLog log;
  for (const uint32_t i : lists.annotations) {
    const std::string_view name = trace.name(trace.events[i]);
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
    name_units(trace, log);
    if (!log.names_units) {
      trace::add_diagnostic(
          log.diagnostics, trace::Severity::kNote,
          "FSDP1 records no module names: units are numbered in the order of their forwards");
    }
  } else if (log.source != FsdpSource::kNone) {
    for (const std::string& fqn : trace.units) {
      log.units.push_back({fqn, std::nullopt});
    }
    NamedRanges(trace, log).read(lists);
    set_parents(log);
  }
  sort_runs(log.events,
            [](const FsdpEvent& a, const FsdpEvent& b) { return a.when.start < b.when.start; });
  for (FsdpEvent& e : log.events) {
    e.forward = e.pass;
  }
  join_forwards(trace, lists, log);
  log.index_collectives();
  return log;
}

}  // namespace shardlens::analysis
