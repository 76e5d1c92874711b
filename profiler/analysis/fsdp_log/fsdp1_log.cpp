#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "core/base/collective.h"
#include "profiler/analysis/events/nesting.h"
#include "profiler/analysis/fsdp_log/fsdp_log.h"

namespace shardlens::analysis {
namespace {

using trace::Category;
using trace::Event;
using trace::Trace;

constexpr std::string_view kPrefix = "FullyShardedDataParallel.";

// See [Note: Units of FSDP1].
class Fsdp1Ranges {
 public:
  Fsdp1Ranges(const Trace& trace, FsdpLog& log) : trace_(trace), log_(log) {}

  void read() {
    std::vector<uint32_t> order =
        by_track_and_start(trace_, [&](const Event& e) { return is_range(e) || is_call(e); });
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      const Event &x = trace_.events[a], &y = trace_.events[b];
      return x.start != y.start ? x.start < y.start : x.duration > y.duration;
    });
    find_roots(order);
    log_.names_units = false;
    unit(kRoot);
    for (const uint32_t index : order) {
      add(index);
    }
    if (by_size_ > 0) {
      trace::add_diagnostic(
          log_.diagnostics, trace::Severity::kNote,
          "FSDP1: backward hooks whose order differs from forward's were matched to units by "
          "message size",
          by_size_);
    }
    if (unmatched_ > 0) {
      trace::add_diagnostic(log_.diagnostics, trace::Severity::kWarning,
                            "FSDP1: backward hooks that match no unit, by order or by message size",
                            unmatched_);
    }
  }

 private:
  // The root keeps its parameters after forward, so backward does not gather it. Its hook runs even
  // so, after that of a unit at the model's end, whose outputs are also the root's.
  static constexpr uint32_t kRoot = 0;

  struct Open {
    Nanoseconds end;
    uint32_t track;
    std::string_view what;  // "forward", "_pre_forward", …; "": a call of c10d
    std::optional<uint32_t> unit;
  };
  // The state of a unit in the current pass.
  struct InPass {
    bool began = false;  // its backward
    int order = 0;       // position among the begins of backward
    int holds = 0;       // nested units whose backward began and that are not reduced yet
  };

  [[nodiscard]] bool is_range(const Event& e) const {
    return e.category == Category::kUserAnnotation && trace_.name(e).starts_with(kPrefix);
  }
  [[nodiscard]] bool is_call(const Event& e) const {
    if (e.category != Category::kCpuOp || !trace_.name(e).starts_with("c10d::")) {
      return false;
    }
    const auto kind = parse_collective(trace_.name(e));
    return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter ||
           kind == CollectiveKind::kAllReduce;
  }

  // The root's forward is the one that converts the inputs (_to_kwargs). Activation checkpointing
  // calls forward again within backward, without this conversion.
  void find_roots(const std::vector<uint32_t>& order) {
    std::vector<uint32_t> open;
    for (const uint32_t index : order) {
      const Event& event = trace_.events[index];
      while (!open.empty() && trace_.events[open.back()].end() <= event.start) {
        open.pop_back();
      }
      const std::string_view name = trace_.name(event);
      if (name == "FullyShardedDataParallel.forward") {
        open.push_back(index);
      } else if (name == "FullyShardedDataParallel._to_kwargs" && !open.empty()) {
        roots_.insert(open.back());
      }
    }
  }

  uint32_t unit(uint32_t index) {
    while (log_.units.size() <= index) {
      const size_t n = log_.units.size();
      log_.units.push_back({n == 0 ? "" : fmt::format("unit {}", n), std::nullopt});
      forward_size_.push_back(-1);
    }
    return index;
  }

  void add(uint32_t index) {
    const Event& event = trace_.events[index];
    while (!open_.empty() && open_.back().end <= event.start) {
      open_.pop_back();
    }
    Open open{event.end(), event.track, {}, innermost_unit()};
    if (is_range(event)) {
      open.what = trace_.name(event).substr(kPrefix.size());
      range(index, event, open);
    } else {
      call(event);
    }
    open_.push_back(open);
  }

  void range(uint32_t index, const Event& event, Open& open) {
    if (open.what == "forward") {
      forward(index, open);
      return;
    }
    if (open.what == "rate_limiter") {
      log_.limiter_waits.push_back({event.start, event.end()});
      limiter_ = event.end() - event.start;
      return;
    }
    // A forward that is recomputed in backward does not gather by itself.
    const bool again = in_backward_ && !is_open("forward");
    if (open.what == "_pre_forward" && open.unit && !again) {
      resolve(forward_prefetched_, *open.unit);
      event_of(FsdpCall::kPreForward, *open.unit, event);
    } else if (open.what == "_post_forward" && open.unit && !again) {
      ended_.push_back(*open.unit);
      event_of(FsdpCall::kPostForward, *open.unit, event);
    } else if (open.what == "_pre_backward_hook") {
      in_backward_ = true;
      open.unit = next_backward(event);
      if (open.unit) {
        resolve(backward_prefetched_, *open.unit);
        event_of(FsdpCall::kPreBackward, *open.unit, event);
      }
    } else if (open.what == "_post_backward_hook") {
      open.unit = next_reduced(event);
      if (open.unit) {
        event_of(FsdpCall::kPostBackward, *open.unit, event);
      }
    }
  }

  void forward(uint32_t index, Open& open) {
    if (roots_.contains(index) || (roots_.empty() && !is_open("forward") && !in_backward_)) {
      ++passes_;
      in_backward_ = false;
      count_ = 0;
      ended_.clear();
      state_.clear();
      waiting_.clear();
      began_ = 0;
      forward_prefetched_.reset();
      backward_prefetched_.reset();
      open.unit = unit(kRoot);
    } else if (is_open("forward")) {
      const std::optional<uint32_t> parent = innermost_unit();
      open.unit = unit(++count_);
      log_.units[count_].parent = parent;
    }
  }

  void call(const Event& event) {
    const auto kind = parse_collective(trace_.name(event));
    const std::string_view hook = innermost_hook();
    const std::optional<uint32_t> unit = innermost_unit();
    const Nanoseconds limiter = std::exchange(limiter_, 0);
    if (hook.empty() || !unit) {
      return;  // called for the loss or the gradient norm
    }
    const bool reduces = kind != CollectiveKind::kAllGather;
    FsdpEvent& out = event_of(reduces ? FsdpCall::kReduce : FsdpCall::kUnshard, *unit, event);
    out.limiter = limiter;
    if (reduces) {
      return;
    }
    const size_t at = log_.events.size() - 1;
    if (hook == "_pre_forward_prefetch") {
      out.unshard_by = UnshardBy::kForwardPrefetch;
      forward_prefetched_ = at;
    } else if (hook == "_pre_backward_prefetch" || hook == "_post_backward_prefetch") {
      out.unshard_by = UnshardBy::kBackwardPrefetch;
      out.after_backward = hook == "_post_backward_prefetch";
      backward_prefetched_ = at;
    } else if (hook == "_pre_forward") {
      forward_size_[*unit] = gathered(event);
    }
  }

  // The prefetched unit is the next one whose hook comes and that the gather can be for.
  void resolve(std::optional<size_t>& prefetched, uint32_t unit) {
    if (!prefetched || !can_be_of(log_.events[*prefetched], unit)) {
      return;
    }
    FsdpEvent& e = log_.events[*prefetched];
    prefetched.reset();
    e.unit = unit;
    log_.prefetches.push_back({e.hook_unit, unit, e.backward, false, e.when.start, e.pass});
    if (!e.backward && forward_size_[unit] < 0) {
      const auto call = sizes_.find(e.when.start);
      forward_size_[unit] = call == sizes_.end() ? -1 : call->second;
    }
  }

  // Whether a prefetch may have gathered the unit: by size if it is known, otherwise not the root
  // in backward.
  [[nodiscard]] bool can_be_of(const FsdpEvent& gather, uint32_t unit) const {
    const auto size = sizes_.find(gather.when.start);
    if (size != sizes_.end() && size->second >= 0 && forward_size_[unit] >= 0) {
      return size->second == forward_size_[unit];
    }
    return !gather.backward || unit != kRoot;
  }

  // Elements per rank: of an all-gather's input, a reduce-scatter's output, or the whole
  // all-reduce.
  int64_t gathered(const Event& event) {
    const CallSize size = call_size(trace_, event);
    const bool reduce = parse_collective(trace_.name(event)) == CollectiveKind::kReduceScatter;
    const int64_t shard = reduce ? size.out : size.in;
    sizes_[event.start] = shard;
    return shard;
  }

  [[nodiscard]] std::optional<uint32_t> next_backward(const Event& hook) {
    const std::optional<int64_t> own = size_within(hook, CollectiveKind::kAllGather);
    const int64_t size = own.value_or(-1);
    std::optional<uint32_t> in_order, fits, root;
    for (size_t i = ended_.size(); i-- > 0;) {
      const uint32_t unit = ended_[i];
      if (state_[unit].began) {
        ended_.erase(ended_.begin() + static_cast<std::ptrdiff_t>(i));  // one of the last
        continue;
      }
      if (own && unit == kRoot) {
        root = unit;  // only if no other unit is left, as in a second backward of one forward
        continue;
      }
      in_order = in_order ? in_order : std::optional(unit);
      if (size < 0 || forward_size_[unit] < 0 || forward_size_[unit] == size) {
        fits = unit;
        break;
      }
    }
    in_order = in_order ? in_order : root;
    return taken(in_order, fits ? fits : root, [&](uint32_t unit) {
      state_[unit].began = true;
      state_[unit].order = began_++;
      waiting_.emplace(state_[unit].order, unit);
      hold_parents(unit, 1);
    });
  }

  [[nodiscard]] std::optional<uint32_t> next_reduced(const Event& hook) {
    const int64_t size = size_within(hook, CollectiveKind::kReduceScatter).value_or(-1);
    std::optional<uint32_t> in_order, fits;
    for (const auto& [order, unit] : waiting_) {
      if (state_[unit].holds > 0) {
        continue;
      }
      in_order = in_order ? in_order : std::optional(unit);
      if (size < 0 || forward_size_[unit] < 0 || forward_size_[unit] == size) {
        fits = unit;
        break;
      }
    }
    return taken(in_order, fits, [&](uint32_t unit) {
      waiting_.erase({state_[unit].order, unit});
      hold_parents(unit, -1);
    });
  }

  template <class Take>
  std::optional<uint32_t> taken(std::optional<uint32_t> in_order,
                                std::optional<uint32_t> fits,
                                Take take) {
    if (!fits) {
      ++unmatched_;
      return std::nullopt;
    }
    by_size_ += fits != in_order ? 1 : 0;
    take(*fits);
    return fits;
  }

  // A unit is not reduced before those nested in it.
  void hold_parents(uint32_t unit, int count) {
    for (std::optional<uint32_t> up = log_.units[unit].parent; up; up = log_.units[*up].parent) {
      state_[*up].holds += count;
    }
  }

  // Elements per rank of the first collective of `kind` that the hook calls itself, not in a
  // prefetch; -1: not in the trace; nullopt: no collective.
  [[nodiscard]] std::optional<int64_t> size_within(const Event& hook, CollectiveKind kind) {
    const auto& calls = calls_on(hook.track);
    for (auto it = std::lower_bound(
             calls.begin(), calls.end(), hook.start,
             [&](uint32_t c, Nanoseconds t) { return trace_.events[c].start < t; });
         it != calls.end() && trace_.events[*it].start < hook.end(); ++it) {
      const Event& call = trace_.events[*it];
      if (parse_collective(trace_.name(call)) == kind && !within_prefetch(call)) {
        return gathered(call);
      }
    }
    return std::nullopt;
  }

  const std::vector<uint32_t>& calls_on(uint32_t track) {
    if (calls_.empty()) {
      for (const uint32_t i :
           by_track_and_start(trace_, [&](const Event& e) { return is_call(e); })) {
        calls_[trace_.events[i].track].push_back(i);
      }
      for (const uint32_t i : by_track_and_start(trace_, [&](const Event& e) {
             return is_range(e) && trace_.name(e).ends_with("_prefetch");
           })) {
        prefetch_ranges_[trace_.events[i].track].push_back(
            {trace_.events[i].start, trace_.events[i].end()});
      }
    }
    return calls_[track];
  }

  [[nodiscard]] bool within_prefetch(const Event& call) {
    return contains(prefetch_ranges_[call.track], call.start);
  }

  FsdpEvent& event_of(FsdpCall what, uint32_t unit, const Event& event) {
    FsdpEvent out;
    out.call = what;
    out.unit = out.hook_unit = unit;
    out.backward = in_backward_;
    out.track = event.track;
    out.when = {event.start, event.end()};
    out.pass = passes_ == 0 ? 0 : passes_ - 1;
    if (what == FsdpCall::kUnshard) {
      (void)gathered(event);
    }
    return log_.events.emplace_back(out);
  }

  [[nodiscard]] bool is_open(std::string_view what) const {
    return std::any_of(open_.begin(), open_.end(), [&](const Open& o) { return o.what == what; });
  }
  [[nodiscard]] std::optional<uint32_t> innermost_unit() const {
    return open_.empty() ? std::nullopt : open_.back().unit;
  }
  // The innermost hook around a call; "": none.
  [[nodiscard]] std::string_view innermost_hook() const {
    for (size_t i = open_.size(); i-- > 0;) {
      if (open_[i].what.starts_with("_")) {
        return open_[i].what;
      }
      if (open_[i].what == "forward") {
        break;
      }
    }
    return {};
  }

  const Trace& trace_;
  FsdpLog& log_;
  std::unordered_set<uint32_t> roots_;
  std::vector<Open> open_;
  uint32_t passes_ = 0, count_ = 0;
  bool in_backward_ = false;
  std::vector<uint32_t> ended_;  // units in the order in which their forwards ended
  std::unordered_map<uint32_t, InPass> state_;
  std::set<std::pair<int, uint32_t>> waiting_;  // units to be reduced, by start of backward
  int began_ = 0;
  // Unshard events whose unit is not known yet.
  std::optional<size_t> forward_prefetched_, backward_prefetched_;
  std::vector<int64_t> forward_size_;                          // by unit; -1: not known
  std::unordered_map<Nanoseconds, int64_t> sizes_;             // sizes of calls, by start
  std::unordered_map<uint32_t, std::vector<uint32_t>> calls_;  // by track
  std::unordered_map<uint32_t, IntervalSet> prefetch_ranges_;  // by track
  Nanoseconds limiter_ = 0;
  int64_t by_size_ = 0, unmatched_ = 0;
};

}  // namespace

void read_fsdp1(const Trace& trace, FsdpLog& log) {
  Fsdp1Ranges(trace, log).read();
}

}  // namespace shardlens::analysis
