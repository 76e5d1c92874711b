#include "profiler/analysis/fsdp_log/sections.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <vector>

#include "profiler/analysis/events/names.h"
#include "profiler/analysis/events/near_search.h"
#include "profiler/analysis/events/sort_runs.h"

namespace shardlens::analysis {

using trace::Event;
using trace::Trace;

// Units whose forward or backward is open, in the order in which they were opened.
//
// Complexity  closing the one that was opened last costs nothing.
class OpenUnits {
 public:
  void open(uint32_t unit) {
    units_.push_back(unit);
    ++times_[unit];
  }
  void close(uint32_t unit) {
    const auto times = times_.find(unit);
    if (times == times_.end()) {
      return;
    }
    if (times->second == 1 && units_.back() == unit) {
      units_.pop_back();
    } else {
      std::erase(units_, unit);
    }
    times_.erase(times);
  }
  void clear() {
    units_.clear();
    times_.clear();
  }
  [[nodiscard]] bool empty() const { return units_.empty(); }
  [[nodiscard]] uint32_t latest() const { return units_.back(); }

 private:
  std::vector<uint32_t> units_;
  std::unordered_map<uint32_t, uint32_t> times_;  // by open unit: how often
};

class SectionBuilder {
 public:
  SectionBuilder(const Trace& trace, FsdpLog& log, Sections& out)
      : trace_(trace), log_(log), out_(out) {
    out_.tracks_.assign(trace.tracks.size(), false);
  }

  void build(const EventLists& lists) {
    if (log_.source == FsdpSource::kNone) {
      return;
    }
    root_ = log_.unit_id("");
    find_marks(lists);
    sort_runs(marks_, [](const Mark& a, const Mark& b) { return a.time < b.time; });
    look_ahead();
    for (size_t i = 0; i < marks_.size(); ++i) {
      apply(i);
      cut(marks_[i].time, owner(i));
    }
    if (!marks_.empty()) {
      cut(marks_.back().time, {});
    }
  }

 private:
  enum class Kind : uint8_t {
    kForward,
    kForwardEnd,
    kBackward,
    kBackwardEnd,
    kOptimizer,
    kOptimizerEnd,
    kNorm,
    kStep
  };
  struct Mark {
    Nanoseconds time = 0;
    Kind kind = Kind::kForward;
    uint32_t unit = 0;
  };
  // What comes after a mark: `forward_goes_on` is about the next mark that is no norm, the others
  // about all marks before the next forward or step.
  struct Ahead {
    bool optimizer = false, backward = false, backward_begins = false, forward_goes_on = false;
  };

  void find_marks(const EventLists& lists) {
    for (const FsdpEvent& e : log_.events) {
      out_.tracks_[e.track] = true;
      if (e.call == FsdpCall::kPreForward) {
        marks_.push_back({e.when.start, e.backward ? Kind::kBackward : Kind::kForward, e.unit});
      } else if (e.call == FsdpCall::kPostForward) {
        marks_.push_back({e.when.end, e.backward ? Kind::kBackwardEnd : Kind::kForwardEnd, e.unit});
      } else if (e.call == FsdpCall::kPreBackward) {
        marks_.push_back({e.when.start, Kind::kBackward, e.unit});
      } else if (e.call == FsdpCall::kPostBackward ||
                 (e.call == FsdpCall::kReduce && log_.source != FsdpSource::kFsdp1)) {
        marks_.push_back({e.when.end, Kind::kBackwardEnd, e.unit});
      }
    }
    const auto is_mark = [](std::string_view name) {
      return name.starts_with("Optimizer.") || parse_profiler_step(name);
    };
    lists.for_annotations_named(trace_, is_mark, [&](uint32_t i) {
      const Event& event = trace_.events[i];
      out_.tracks_[event.track] = true;
      if (trace_.name(event).starts_with("Optimizer.")) {
        marks_.push_back({event.start, Kind::kOptimizer});
        marks_.push_back({event.end(), Kind::kOptimizerEnd});
      } else {
        marks_.push_back({event.start, Kind::kStep});
      }
    });
    lists.for_operators_named(
        trace_,
        [](std::string_view name) {
          return name.ends_with("_norm") || name.find("clip_grad") != std::string_view::npos;
        },
        [&](uint32_t i) {
          marks_.push_back({trace_.events[i].start, Kind::kNorm});
        });
  }

  void apply(size_t i) {
    const Mark& mark = marks_[i];
    switch (mark.kind) {
      case Kind::kForward:
        backward_.clear();
        forward_.open(mark.unit);
        stage_ = Section::kForward;
        break;
      case Kind::kForwardEnd:
        forward_.close(mark.unit);
        break;
      case Kind::kBackward:
        forward_.clear();
        backward_.close(mark.unit);
        backward_.open(mark.unit);
        stage_ = Section::kBackward;
        break;
      case Kind::kBackwardEnd:
        backward_.close(mark.unit);
        break;
      case Kind::kOptimizer:
        ++optimizers_;
        stage_ = Section::kOptimizer;
        break;
      case Kind::kOptimizerEnd:
        --optimizers_;
        break;
      case Kind::kNorm:
        if (stage_ == Section::kBackward && backward_.empty() && ahead_[i].optimizer &&
            !ahead_[i].backward) {
          stage_ = Section::kClip;
        }
        break;
      case Kind::kStep:
        forward_.clear();
        backward_.clear();
        stage_ = Section::kNone;
        break;
    }
  }

  // What follows each mark, collected from the last mark to the first.
  void look_ahead() {
    Ahead ahead;
    ahead_.resize(marks_.size());
    for (size_t i = marks_.size(); i-- > 0;) {
      ahead_[i] = ahead;
      const Kind kind = marks_[i].kind;
      if (kind == Kind::kForward || kind == Kind::kStep) {
        ahead = Ahead();
      }
      ahead.optimizer = ahead.optimizer || kind == Kind::kOptimizer;
      ahead.backward = ahead.backward || kind == Kind::kBackward || kind == Kind::kBackwardEnd;
      ahead.backward_begins = ahead.backward_begins || kind == Kind::kBackward;
      if (kind != Kind::kNorm) {
        ahead.forward_goes_on = kind == Kind::kForward || kind == Kind::kForwardEnd;
      }
    }
  }

  // A closure runs forward and backward within Optimizer.step: these win over the optimizer.
  [[nodiscard]] Owner owner(size_t i) const {
    const Owner own = of_stage(i);
    return own.section == Section::kNone && optimizers_ > 0 ? Owner{Section::kOptimizer, kNoUnit}
                                                            : own;
  }

  [[nodiscard]] Owner of_stage(size_t i) const {
    switch (stage_) {
      case Section::kForward:
        if (!forward_.empty()) {
          return {Section::kForward, forward_.latest()};
        }
        return ahead_[i].forward_goes_on   ? Owner{Section::kForward, root_}
               : ahead_[i].backward_begins ? Owner{Section::kLoss, kNoUnit}
                                           : Owner{};
      case Section::kBackward:
        if (!backward_.empty()) {
          return {Section::kBackward, backward_.latest()};
        }
        return ahead_[i].backward ? Owner{Section::kBackward, root_} : Owner{};
      case Section::kClip:
        return {Section::kClip, kNoUnit};
      default:
        return {};
    }
  }

  // From `time` on, the host's time belongs to `owner`.
  void cut(Nanoseconds time, const Owner& owner) {
    auto& parts = out_.parts_;
    if (open_ && open_->when.start < time) {
      open_->when.end = time;
      if (!parts.empty() && parts.back().owner == open_->owner &&
          parts.back().when.end == open_->when.start) {
        parts.back().when.end = time;
      } else {
        parts.push_back(*open_);
      }
    }
    open_.reset();
    if (owner.section != Section::kNone) {
      open_ = Sections::Part{{time, time}, owner};
    }
  }

  const Trace& trace_;
  FsdpLog& log_;
  Sections& out_;
  std::vector<Mark> marks_;
  std::vector<Ahead> ahead_;  // by mark
  OpenUnits forward_, backward_;
  int optimizers_ = 0;
  Section stage_ = Section::kNone;
  uint32_t root_ = 0;
  std::optional<Sections::Part> open_;
};

Sections::Sections(const Trace& trace, const EventLists& lists, FsdpLog& log) {
  SectionBuilder(trace, log, *this).build(lists);
}

Owner Sections::at(uint32_t track, Nanoseconds instant) const {
  return track < tracks_.size() && tracks_[track] ? at(instant) : Owner{};
}

Owner Sections::at(uint32_t track, Nanoseconds instant, size_t& near) const {
  return track < tracks_.size() && tracks_[track] ? near_at(instant, near) : Owner{};
}

Owner Sections::at(Nanoseconds instant) const {
  size_t near = parts_.size() / 2;
  return near_at(instant, near);
}

Owner Sections::near_at(Nanoseconds instant, size_t& near) const {
  if (near > 0 && near <= parts_.size() && parts_[near - 1].when.contains(instant)) {
    return parts_[near - 1].owner;
  }
  near = partition_near(parts_, near, [&](const Part& p) { return p.when.start <= instant; });
  return near == 0 || instant >= parts_[near - 1].when.end ? Owner{} : parts_[near - 1].owner;
}

}  // namespace shardlens::analysis
