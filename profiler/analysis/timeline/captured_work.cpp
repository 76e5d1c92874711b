#include "profiler/analysis/timeline/captured_work.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "profiler/analysis/events/names.h"

namespace shardlens::analysis {
namespace {

using trace::Trace;

// FSDP2's own kernels that copy parameters out of an all-gather and gradients into a
// reduce-scatter. Source: aten/src/ATen/native/cuda/TensorShape.cu, torch 2.11.
bool copies_parameters(std::string_view name) {
  return name.find("split_with_sizes_copy_out") != std::string_view::npos ||
         name.find("chunk_cat_cuda_kernel") != std::string_view::npos;
}

constexpr uint32_t kNoPlace = 0xffffffffU;

// Positions in the list of all device events, by start.
using Places = std::vector<uint32_t>;

// The part of an event that is the same in every repetition: the kind of a collective, whose
// algorithm may change, or the name.
using Token = uint64_t;

struct Fit {                         // a replay compared with an uncaptured step
  std::vector<uint32_t> same;        // by position in the replay: in the step; kNoPlace: none
  size_t different = 0;              // events that only one of the two has
  std::optional<Token> first_token;  // the first of the replay whose number differs
};

// Pairs the events of a replay with those of a step that did the same work.
//
// [Note: Equal places] A CUDA graph runs the kernels of the captured streams on streams of its own
// choice, and those of independent streams in any order. So the n-th kernel of a name is the n-th
// of this name in the step. Collectives of one kind have one name whatever they carry: they are
// paired if they ran on one stream, where they are in order, or if streams of replay and step
// correspond, by the number of these collectives on each or by the order of all.
class Comparison {
 public:
  Comparison(const Sources& sources, const std::vector<SeenEvent>& events)
      : sources_(sources), events_(events) {}

  [[nodiscard]] Token token(uint32_t place) const {
    const trace::Event& event = sources_.trace.events[events_[place].event];
    const NameFacts& facts = sources_.names.of(event);
    constexpr Token kCollective = Token{1} << 32;
    return facts.communicates && facts.kind ? kCollective + static_cast<Token>(*facts.kind)
                                            : event.name;
  }

  [[nodiscard]] Fit compare(const Places& replay, const Places& step) const {
    Fit fit;
    fit.same.assign(replay.size(), kNoPlace);
    std::unordered_map<Token, std::pair<Places, Places>> by_token;  // positions in the two
    for (uint32_t i = 0; i < replay.size(); ++i) {
      by_token[token(replay[i])].first.push_back(i);
    }
    for (uint32_t i = 0; i < step.size(); ++i) {
      by_token[token(step[i])].second.push_back(i);
    }
    uint32_t first = kNoPlace;
    for (const auto& [of, places] : by_token) {
      const auto& [ours, theirs] = places;
      if (ours.size() != theirs.size()) {
        fit.different +=
            ours.size() > theirs.size() ? ours.size() - theirs.size() : theirs.size() - ours.size();
        if (!ours.empty() && ours.front() < first) {
          first = ours.front();
          fit.first_token = of;
        }
        continue;
      }
      if (is_collective(of)) {
        pair_collectives(replay, ours, step, theirs, fit);
        continue;
      }
      for (size_t i = 0; i < ours.size(); ++i) {
        fit.same[ours[i]] = theirs[i];
      }
    }
    return fit;
  }

  [[nodiscard]] static bool is_collective(Token token) { return token >> 32 != 0; }

 private:
  [[nodiscard]] uint32_t track(uint32_t place) const {
    return sources_.trace.events[events_[place].event].track;
  }

  // The places on each stream, by their number; empty if two streams have equally many.
  [[nodiscard]] std::map<size_t, Places> by_number(const Places& all, const Places& places) const {
    std::map<uint32_t, Places> streams;
    for (const uint32_t i : places) {
      streams[track(all[i])].push_back(i);
    }
    std::map<size_t, Places> out;
    for (auto& [stream, of_stream] : streams) {
      const size_t number = of_stream.size();
      if (!out.try_emplace(number, std::move(of_stream)).second) {
        return {};
      }
    }
    return out;
  }

  // Pairs collectives of one kind, if only one pairing is possible.
  void pair_collectives(const Places& replay,
                        const Places& ours,
                        const Places& step,
                        const Places& theirs,
                        Fit& fit) const {
    const auto pair = [&fit](const Places& mine, const Places& other) {
      for (size_t i = 0; i < mine.size(); ++i) {
        fit.same[mine[i]] = other[i];
      }
    };
    const std::map<size_t, Places> mine = by_number(replay, ours), other = by_number(step, theirs);
    const bool same = std::ranges::equal(
        mine, other, [](const auto& a, const auto& b) { return a.first == b.first; });
    if (!mine.empty() && same) {
      for (const auto& [number, places] : mine) {
        pair(places, other.at(number));
      }
    } else if (corresponding(replay, ours, step, theirs)) {
      pair(ours, theirs);
    }
  }

  // Whether every stream of one has its stream in the other, if they are paired in order.
  [[nodiscard]] bool corresponding(const Places& replay,
                                   const Places& ours,
                                   const Places& step,
                                   const Places& theirs) const {
    const bool one = std::ranges::all_of(
        theirs, [&](uint32_t i) { return track(step[i]) == track(step[theirs.front()]); });
    if (one) {
      return true;
    }
    std::map<uint32_t, uint32_t> there, back;
    for (size_t i = 0; i < ours.size(); ++i) {
      const uint32_t mine = track(replay[ours[i]]), other = track(step[theirs[i]]);
      if (there.try_emplace(mine, other).first->second != other ||
          back.try_emplace(other, mine).first->second != mine) {
        return false;
      }
    }
    return true;
  }

  const Sources& sources_;
  const std::vector<SeenEvent>& events_;
};

bool is_pass(Section section) {
  return section == Section::kForward || section == Section::kLoss || section == Section::kBackward;
}

// The work of one step of the profiler, or of one replay in a trace without steps.
struct StepWork {
  std::optional<int64_t> number;
  Places captured;  // launched by CUDA graphs, without an owner
  Places pass;      // those, and the other events of forward, loss and backward
  Places all;       // all events
};

std::string words_of(const StepWork& step, std::string_view without) {
  return step.number ? fmt::format("step {}", *step.number) : std::string(without);
}

class StepSplit {
 public:
  StepSplit(const Sources& sources,
            const std::unordered_set<uint32_t>& launches,
            const std::vector<SeenEvent>& events)
      : trace_(sources.trace), launches_(launches), events_(events), marks_(step_marks(sources)) {}

  [[nodiscard]] bool is_open(uint32_t place) const {
    const SeenEvent& seen = events_[place];
    if (seen.owner.section != Section::kNone) {
      return false;
    }
    const trace::DeviceArgs* device = trace_.device(trace_.events[seen.event]);
    return (seen.launch != nullptr && launches_.contains(seen.launch->event)) ||
           (device != nullptr && (device->graph_node > 0 || device->module != trace::kEmptyString));
  }

  [[nodiscard]] std::vector<StepWork> split() const {
    std::vector<StepWork> out(marks_.size());
    std::map<std::pair<uint32_t, uint32_t>, size_t> single;  // without steps, by launch
    for (size_t i = 0; i < marks_.size(); ++i) {
      out[i].number = marks_[i].number;
    }
    for (uint32_t i = 0; i < events_.size(); ++i) {
      const SeenEvent& seen = events_[i];
      const trace::Event& event = trace_.events[seen.event];
      const Nanoseconds launched = seen.launch == nullptr ? event.start : seen.launch->start;
      auto mark = std::partition_point(marks_.begin(), marks_.end(),
                                       [&](const Step& s) { return s.window.start <= launched; });
      size_t at = marks_.size();
      if (mark != marks_.begin() && launched < std::prev(mark)->window.end) {
        at = static_cast<size_t>(mark - marks_.begin()) - 1;
      } else if (is_open(i)) {
        const uint32_t launch = seen.launch == nullptr ? trace::kNoIndex : seen.launch->event;
        const auto [found, fresh] = single.try_emplace({launch, 0U}, out.size());
        at = found->second;
        if (fresh) {
          out.emplace_back();
        }
      } else {
        continue;
      }
      const bool open = is_open(i);
      out[at].all.push_back(i);
      if (open) {
        out[at].captured.push_back(i);
      }
      if (open || is_pass(seen.owner.section)) {
        out[at].pass.push_back(i);
      }
    }
    return out;
  }

 private:
  const Trace& trace_;
  const std::unordered_set<uint32_t>& launches_;
  const std::vector<SeenEvent>& events_;
  std::vector<Step> marks_;
};

// The forward and backward of each pass of FSDP that was not captured.
std::vector<StepWork> uncaptured_passes(const Timeline& timeline,
                                        const Trace& trace,
                                        const std::vector<SeenEvent>& events) {
  std::map<uint32_t, Interval> hulls;
  for (const FsdpEvent& e : timeline.fsdp.events) {
    const auto [found, fresh] = hulls.try_emplace(e.pass, e.when);
    found->second.start = std::min(found->second.start, e.when.start);
    found->second.end = std::max(found->second.end, e.when.end);
  }
  std::vector<StepWork> out(hulls.size());
  std::vector<Interval> whens;
  for (const auto& [pass, when] : hulls) {
    whens.push_back(when);
  }
  for (uint32_t i = 0; i < events.size(); ++i) {
    const SeenEvent& seen = events[i];
    if (!is_pass(seen.owner.section)) {
      continue;
    }
    const Nanoseconds launched =
        seen.launch == nullptr ? trace.events[seen.event].start : seen.launch->start;
    const auto after = std::partition_point(
        whens.begin(), whens.end(), [&](const Interval& when) { return when.start <= launched; });
    if (after != whens.begin()) {
      StepWork& pass = out[static_cast<size_t>(after - whens.begin()) - 1];
      pass.pass.push_back(i);
      pass.all.push_back(i);
    }
  }
  return out;
}

// Attributes the captured events of one step by an uncaptured one.
class Repetition {
 public:
  Repetition(const Sources& sources,
             std::vector<SeenEvent>& events,
             Timeline& timeline,
             const std::vector<StepWork>& uncaptured,
             bool program)
      : sources_(sources),
        events_(events),
        timeline_(timeline),
        uncaptured_(uncaptured),
        program_(program) {}

  // False: no uncaptured step is like it.
  bool attribute(const StepWork& step) {
    const Comparison comparison(sources_, events_);
    const Places *best_replay = nullptr, *best_step = nullptr;
    const StepWork* best_of = nullptr;
    Fit best;
    for (const StepWork& each : uncaptured_) {
      for (const auto& list : {&StepWork::pass, &StepWork::all}) {
        if ((each.*list).empty() || (best_of != nullptr && best.different == 0)) {
          continue;
        }
        Fit fit = comparison.compare(step.*list, each.*list);
        if (best_of == nullptr || fit.different < best.different) {
          best = std::move(fit);
          best_replay = &(step.*list);
          best_step = &(each.*list);
          best_of = &each;
        }
      }
    }
    if (best_of == nullptr) {
      return false;
    }
    if (best.different > 0) {
      say_difference(step, *best_replay, *best_of, *best_step, best);
    }
    // Beyond this, equal names are no evidence of equal work.
    constexpr size_t kMostDifferent = 5;
    if (best.different * kMostDifferent > best_replay->size()) {
      return false;
    }
    take_over(step, *best_replay, *best_step, best);
    return true;
  }

 private:
  void take_over(const StepWork& of, const Places& replay, const Places& step, const Fit& fit) {
    const std::unordered_set<uint32_t> captured(of.captured.begin(), of.captured.end());
    std::unordered_set<uint32_t> open;
    for (uint32_t i = 0; i < replay.size(); ++i) {
      SeenEvent& seen = events_[replay[i]];
      if (seen.owner.section != Section::kNone || (program_ && !captured.contains(replay[i]))) {
        continue;
      }
      if (fit.same[i] == kNoPlace) {
        open.insert(i);
        continue;
      }
      const SeenEvent& like = events_[step[fit.same[i]]];
      seen.owner = like.owner;
      seen.nature = like.nature;
      seen.kind = seen.kind ? seen.kind : like.kind;
      seen.basis = Basis::kOrder;
      timeline_.repeats.emplace_back(seen.event, like.event);
    }
    for (const uint32_t i : open) {
      events_[replay[i]].owner.section = Section::kAmbiguous;
      events_[replay[i]].basis = Basis::kAmbiguous;
    }
    fill(replay, open);
  }

  // A kernel between two of one owner belongs to it.
  void fill(const Places& replay, const std::unordered_set<uint32_t>& open) {
    const auto is_work = [&](uint32_t i) {
      return events_[replay[i]].nature != Nature::kCommunication;
    };
    std::vector<uint32_t> next(replay.size(), kNoPlace);
    uint32_t after = kNoPlace;
    for (auto i = static_cast<uint32_t>(replay.size()); i-- > 0;) {
      next[i] = after;
      after = is_work(i) && !open.contains(i) ? i : after;
    }
    uint32_t before = kNoPlace;
    for (uint32_t i = 0; i < replay.size(); ++i) {
      if (!is_work(i)) {
        continue;
      }
      if (!open.contains(i)) {
        before = i;
      } else if (before != kNoPlace && next[i] != kNoPlace &&
                 events_[replay[before]].owner == events_[replay[next[i]]].owner) {
        events_[replay[i]].owner = events_[replay[before]].owner;
        events_[replay[i]].basis = Basis::kOrder;
      }
    }
  }

  void say_difference(const StepWork& step,
                      const Places& replay,
                      const StepWork& like,
                      const Places& uncaptured,
                      const Fit& fit) {
    const Comparison comparison(sources_, events_);
    const auto count = [&](const Places& places) {
      return std::ranges::count_if(
          places, [&](uint32_t i) { return comparison.token(i) == fit.first_token; });
    };
    std::string_view name = "a kernel that the graph lacks";
    for (const uint32_t i : replay) {
      if (comparison.token(i) == fit.first_token) {
        name = sources_.trace.name(sources_.trace.events[events_[i].event]);
        break;
      }
    }
    add_note(timeline_,
             fmt::format("the CUDA graph of {} differs from the uncaptured {} in {} events of {}; "
                         "first: {} of '{}', not {}",
                         words_of(step, "a replay"), words_of(like, "pass"), fit.different,
                         replay.size(), count(replay), name, count(uncaptured)));
  }

  const Sources& sources_;
  std::vector<SeenEvent>& events_;
  Timeline& timeline_;
  const std::vector<StepWork>& uncaptured_;
  bool program_;  // gathers its parameters itself, so nothing else of the step has an owner
};

}  // namespace

CapturedWork::CapturedWork(const Sources& sources) : sources_(sources) {
  sources.lists.for_calls_named(sources.trace, is_graph_launch,
                                [&](uint32_t i) { launches_.insert(i); });
  for (const trace::DeviceArgs& args : sources.trace.devices) {
    annotated_ = annotated_ || args.module != trace::kEmptyString;
  }
  if (sources.planned != nullptr && !launches_.empty()) {
    planned_ = std::make_unique<PlannedOrder>(*sources.planned);
  }
}

void CapturedWork::attribute(std::vector<SeenEvent>& events, Timeline& timeline) const {
  const StepSplit split(sources_, launches_, events);
  const std::vector<StepWork> steps = split.split();
  std::vector<StepWork> uncaptured;
  // Each uncaptured step is compared with each replay, and more steps say nothing new.
  constexpr size_t kMostCompared = 8;
  // The passes of a program that gathers its parameters itself are known later.
  const bool program =
      !sources_.trace.sharded_parameters.empty() && timeline.fsdp.source == FsdpSource::kNone;
  const auto runs_pass = [&](const StepWork& step) {
    return program ? std::ranges::any_of(
                         step.all,
                         [&](uint32_t i) { return events[i].nature == Nature::kCommunication; })
                   : !step.pass.empty();
  };
  for (const StepWork& step : steps) {
    if (step.captured.empty() && runs_pass(step) && uncaptured.size() < kMostCompared) {
      uncaptured.push_back(step);
    }
  }
  for (StepWork& pass : uncaptured_passes(timeline, sources_.trace, events)) {
    if (uncaptured.size() < kMostCompared) {
      uncaptured.push_back(std::move(pass));
    }
  }
  for (const StepWork& step : steps) {
    for (const uint32_t i : step.captured) {
      const trace::Event& event = sources_.trace.events[events[i].event];
      if (events[i].nature == Nature::kCompute && copies_parameters(sources_.trace.name(event))) {
        events[i].nature = Nature::kCopy;
      }
    }
  }
  Repetition repetition(sources_, events, timeline, uncaptured, program);
  for (const StepWork& step : steps) {
    if (!step.captured.empty()) {
      if (!repetition.attribute(step) && planned_ != nullptr) {
        attribute_planned(sources_, *planned_, step.captured, words_of(step, "a replay"), events,
                          timeline);
      }
      attribute_annotated(sources_.trace, step.captured, events, timeline);
    }
  }
  std::sort(timeline.repeats.begin(), timeline.repeats.end());
}

}  // namespace shardlens::analysis
