#include "profiler/analysis/exposed/frozen_views.h"

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_map>

#include "profiler/analysis/events/names.h"

namespace shardlens::analysis {
namespace {

using trace::Event;

// The work of one unit between two forwards of the model.
struct UnitPass {
  std::optional<Interval> forward;      // from its first pre_forward to its last post_forward
  std::optional<Nanoseconds> backward;  // when its (last) backward began
  std::vector<size_t> reductions;       // indices of collectives
  std::optional<Nanoseconds> issued;    // when its last reduction was issued
  std::optional<Nanoseconds> complete;  // if reduced late: by when its gradients were complete
};
struct Pass {
  std::map<uint32_t, UnitPass> units;
};

class Finder {
 public:
  Finder(const trace::Trace& trace,
         const Timeline& timeline,
         const Partition& partition,
         const IntervalSet& window)
      : trace_(trace), timeline_(timeline), partition_(partition), window_(window) {
    for (uint32_t i = 0; i < timeline.units.size(); ++i) {
      units_.emplace(timeline.units[i], i);
    }
  }

  std::optional<FrozenViews> run() {
    collect();
    out_.is_late.assign(timeline_.collectives.size(), false);
    for (auto& [begin, pass] : passes_) {
      if (judge(pass)) {
        add(pass);
      }
    }
    return out_.backwards > 0 ? std::optional(std::move(out_)) : std::nullopt;
  }

 private:
  void collect() {
    std::vector<Interval> callbacks;
    // Each distinct name is examined once.
    std::vector<std::optional<Named>> names(trace_.strings.size());
    std::vector<uint32_t> ranges;
    const auto has_meaning = [&](std::string_view name) {
      return meaning_of(name).what != What::kOther;
    };
    timeline_.lists.for_annotations_named(trace_, has_meaning, [&](uint32_t i) {
      const Event& event = trace_.events[i];
      std::optional<Named>& known = names[event.name];
      if (!known) {
        known = meaning_of(trace_.name(event));
      }
      if (known->what == What::kCallback) {
        callbacks.push_back({event.start, event.end()});
      } else {
        ranges.push_back(i);
      }
    });
    for (const Nanoseconds begin : timeline_.fsdp.root_forwards) {
      passes_[begin];
    }
    for (const uint32_t i : ranges) {
      add_range(trace_.events[i], *names[trace_.events[i].name]);
    }
    const IntervalSet final_callbacks = union_of(std::move(callbacks));
    for (size_t i = 0; i < timeline_.collectives.size(); ++i) {
      const Collective& c = timeline_.collectives[i];
      const bool reduces = c.part == UnitPart::kReduceScatter || c.part == UnitPart::kAllReduce;
      if (!reduces || !c.unit || !c.issued || contains(final_callbacks, *c.issued) ||
          !contains(window_, *c.issued)) {
        continue;
      }
      if (Pass* pass = pass_at(*c.issued)) {
        UnitPass& unit = pass->units[*c.unit];
        unit.reductions.push_back(i);
        unit.issued = std::max(unit.issued.value_or(*c.issued), *c.issued);
      }
    }
  }

  Pass* pass_at(Nanoseconds instant) {
    const auto after = passes_.upper_bound(instant);
    return after == passes_.begin() ? nullptr : &std::prev(after)->second;
  }

  // The meaning of a range's name.
  enum class What : uint8_t { kOther, kCallback, kForward, kBackward };
  struct Named {
    What what = What::kOther;
    uint32_t unit = 0;
  };

  [[nodiscard]] Named meaning_of(std::string_view name) const {
    const auto range = parse_fsdp_range(name);
    if (!range || range->is_fsdp1) {
      return {};
    }
    if (range->what == "root_post_backward_callback") {
      return {What::kCallback, 0};
    }
    const bool wrapped = timeline_.fsdp.source == FsdpSource::kFsdp2;
    const auto unit = !range->fqn ? units_.end()
                                  : units_.find(wrapped ? without_wrappers(*range->fqn)
                                                        : std::string(*range->fqn));
    if (unit == units_.end()) {
      return {};
    }
    return {range->what == "pre_backward"                                   ? What::kBackward
            : range->what == "pre_forward" || range->what == "post_forward" ? What::kForward
                                                                            : What::kOther,
            unit->second};
  }

  void add_range(const Event& event, const Named& range) {
    Pass* pass = pass_at(event.start);
    if (pass == nullptr) {
      return;
    }
    UnitPass& at = pass->units[range.unit];
    if (range.what == What::kBackward) {
      at.backward = std::max(at.backward.value_or(event.start), event.start);
      return;
    }
    if (at.backward) {
      return;  // a forward that is recomputed
    }
    at.forward = at.forward ? Interval{std::min(at.forward->start, event.start),
                                       std::max(at.forward->end, event.end())}
                            : Interval{event.start, event.end()};
  }

  // Whether every reduction waited for the whole backward; see [Note: Frozen views].
  static bool judge(Pass& pass) {
    // First and last backward of the units whose forward ended up to some instant. A unit without
    // any forward time comes before no other.
    struct Before {
      Nanoseconds forward_end, first, last;
    };
    std::vector<Before> before;
    for (const auto& [id, v] : pass.units) {
      if (v.forward && v.backward && v.forward->length() > 0) {
        before.push_back({v.forward->end, *v.backward, *v.backward});
      }
    }
    std::sort(before.begin(), before.end(),
              [](const Before& a, const Before& b) { return a.forward_end < b.forward_end; });
    for (size_t i = 1; i < before.size(); ++i) {
      before[i].first = std::min(before[i].first, before[i - 1].first);
      before[i].last = std::max(before[i].last, before[i - 1].last);
    }
    bool any = false;
    for (auto& [id, u] : pass.units) {
      if (!u.issued || !u.forward) {
        continue;
      }
      const auto after =
          std::upper_bound(before.begin(), before.end(), u.forward->start,
                           [](Nanoseconds t, const Before& b) { return t < b.forward_end; });
      if (after == before.begin()) {
        continue;
      }
      if (*u.issued <= std::prev(after)->last) {
        return false;
      }
      any = true;
      u.complete = std::prev(after)->first;
    }
    return any;
  }

  void add(const Pass& pass) {
    constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();
    Interval hidden{kNever, kNever};  // when the reductions could have run with fresh views
    Nanoseconds exposed = 0;
    for (const auto& [id, u] : pass.units) {
      if (!u.complete) {
        continue;
      }
      hidden.start = std::min(hidden.start, *u.complete);
      for (const size_t i : u.reductions) {
        out_.is_late[i] = true;
        exposed += length_of(partition_.exposed(i, window_));
        hidden.end = std::min(hidden.end, *timeline_.collectives[i].issued);
      }
    }
    out_.lost +=
        hidden.start < hidden.end ? std::min(exposed, length_within(timeline_.compute, hidden)) : 0;
    if (out_.backwards++ == 0) {
      describe(pass);
    }
  }

  struct Happening {
    Nanoseconds time = 0;
    uint32_t unit = 0;
    std::string_view what;
  };

  [[nodiscard]] std::string words(const Happening& happening) const {
    const std::string& fqn = timeline_.units[happening.unit];
    return std::string(happening.what) + " (" + (fqn.empty() ? "root" : fqn) + ")";
  }

  void describe(const Pass& pass) {
    std::vector<Happening> found;
    for (const auto& [id, u] : pass.units) {
      if (u.backward) {
        found.push_back({*u.backward, id, "backward"});
      }
      for (const size_t i : u.reductions) {
        const Collective& c = timeline_.collectives[i];
        found.push_back({*c.issued, id, name_of(c.part)});
      }
    }
    const auto by_time = [](const Happening& a, const Happening& b) { return a.time < b.time; };
    std::stable_sort(found.begin(), found.end(), by_time);
    std::vector<Happening> fresh;
    for (const Happening& each : found) {
      out_.found.push_back(words(each));
      const UnitPass& unit = pass.units.at(each.unit);
      const bool late = unit.complete && each.what != "backward";
      if (late && (out_.late.empty() || out_.late.back() != timeline_.units[each.unit])) {
        out_.late.push_back(timeline_.units[each.unit]);
      }
      fresh.push_back(late ? Happening{*unit.complete, each.unit, each.what} : each);
    }
    // A reduction comes before the backward that begins when its gradients are complete.
    std::stable_sort(fresh.begin(), fresh.end(), [](const Happening& a, const Happening& b) {
      return a.time != b.time ? a.time < b.time : a.what != "backward" && b.what == "backward";
    });
    for (const Happening& each : fresh) {
      out_.fresh.push_back(words(each));
    }
  }

  const trace::Trace& trace_;
  const Timeline& timeline_;
  const Partition& partition_;
  const IntervalSet& window_;
  std::unordered_map<std::string, uint32_t> units_;
  std::map<Nanoseconds, Pass> passes_;  // by start time
  FrozenViews out_;
};

}  // namespace

std::optional<FrozenViews> find_frozen_views(const trace::Trace& trace,
                                             const Timeline& timeline,
                                             const Partition& partition,
                                             const IntervalSet& window) {
  return Finder(trace, timeline, partition, window).run();
}

}  // namespace shardlens::analysis
