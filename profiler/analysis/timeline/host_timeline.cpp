#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "profiler/analysis/events/names.h"
#include "profiler/analysis/events/nesting.h"
#include "profiler/analysis/timeline/sources.h"

namespace shardlens::analysis {
namespace {

using trace::Category;
using trace::Event;
using trace::EventPhase;
using trace::kNoIndex;
using trace::Trace;

// See [Note: Leaf operators] in names.h.
class LeafOperators {
 public:
  LeafOperators(const Sources& sources, Timeline& timeline, Instants& instants)
      : sources_(sources),
        trace_(sources.trace),
        timeline_(timeline),
        instants_(instants),
        places_(sources.trace.tracks.size()) {}

  void add_all() {
    const auto wanted = [](const Event& e) {
      return e.category == Category::kCpuOp || e.category == Category::kUserAnnotation ||
             e.category == Category::kCommunication;
    };
    uint32_t track = kNoIndex;
    for (const uint32_t index : by_track_and_start(trace_, wanted)) {
      const Event& event = trace_.events[index];
      while (!open_.empty() &&
             (event.track != track || trace_.events[open_.back().event].end() <= event.start)) {
        close();
      }
      track = event.track;
      open(index);
    }
    while (!open_.empty()) {
      close();
    }
  }

 private:
  // An enclosing event of the current one, with properties that apply to all events within it.
  struct Frame {
    uint32_t event;
    bool in_collective;  // within a collective, on the thread of its communicator
    bool copies;         // within FSDP's ranges or operators
    bool is_candidate;   // may be a leaf
    bool is_operator;    // an operator whose enclosing operators are not leaves
    bool has_operators;  // contains such operators
  };

  void open(uint32_t index) {
    const Event& event = trace_.events[index];
    const NameFacts& facts = sources_.names.of(event);
    Frame frame{index, false, false, false, false, false};
    if (!open_.empty()) {
      frame.in_collective = open_.back().in_collective;
      frame.copies = open_.back().copies;
    }
    if (event.category == Category::kCpuOp) {
      frame.copies = frame.copies || facts.is_fsdp_operator;
      frame.is_candidate =
          !frame.in_collective && facts.is_operator && !facts.is_c10d_operator && !facts.matches;
      frame.is_operator = frame.is_candidate && !facts.is_helper;
    } else if (event.category == Category::kUserAnnotation) {
      frame.copies = frame.copies || facts.is_fsdp_work;
    }
    frame.in_collective =
        frame.in_collective || facts.matches || is_host_collective(sources_, event);
    open_.push_back(frame);
  }

  void close() {
    const Frame frame = open_.back();
    open_.pop_back();
    if (!open_.empty()) {
      open_.back().has_operators |= frame.has_operators || frame.is_operator;
    }
    if (frame.is_candidate && !frame.has_operators) {
      const Event& event = trace_.events[frame.event];
      const Interval when = Sources::when(event);
      (frame.copies ? instants_.copy : instants_.compute).add(when);
      const Owner owner = timeline_.sections.at(event.track, event.start, near_section_);
      timeline_.host_events.push_back(
          {when, event.start, frame.event, frame.event,
           places_.of({event.track, event.track, owner}, timeline_.places),
           frame.copies ? Nature::kCopy : Nature::kCompute});
    }
  }

  const Sources& sources_;
  const Trace& trace_;
  Timeline& timeline_;
  Instants& instants_;
  PlaceIndex places_;
  std::vector<Frame> open_;
  size_t near_section_ = 0;
};

// Calls of c10d that are communication without a CollectiveKind, as Gloo's all-to-all of a list
// makes. Gloo's threads may not show each of them.
bool is_other_call(std::string_view name) {
  constexpr std::array<std::string_view, 6> kOthers{"scatter_", "gather_", "reduce_",
                                                    "send",     "recv_",   "recv_any_source_"};
  return name.starts_with("c10d::") &&
         std::ranges::find(kOthers, name.substr(std::string_view("c10d::").size())) !=
             kOthers.end();
}

}  // namespace

void add_host_events(const Sources& sources, Timeline& timeline, Instants& instants) {
  const Trace& trace = sources.trace;
  Interval operators{0, -1}, collectives{0, -1};
  const auto widen = [](Interval& hull, const Interval& by) {
    hull = hull.length() < 0 ? by
                             : Interval{std::min(hull.start, by.start), std::max(hull.end, by.end)};
  };
  for (uint32_t i = 0; i < trace.events.size(); ++i) {
    const Event& event = trace.events[i];
    const bool is_operator =
        event.phase == EventPhase::kComplete && event.category == Category::kCpuOp;
    const Interval when = Sources::when(event);
    if (is_host_collective(sources, event) || (is_operator && sources.names.of(event).matches)) {
      Collective c = make_collective(trace, sources.sizes, i, collective_row(trace, event));
      if (c.args == kNoIndex || trace.collectives[c.args].collective == trace::kEmptyString) {
        c.kind = parse_collective(trace.name(event));
      }
      timeline.collectives.push_back(c);
      instants.communication.add(when);
      widen(collectives, when);
    } else if (is_operator) {
      widen(operators, when);
    }
  }
  LeafOperators(sources, timeline, instants).add_all();
  const Interval& hull = operators.length() >= 0 ? operators : collectives;
  if (operators.length() >= 0 || !timeline.collectives.empty()) {
    timeline.span = union_of({hull});
  }
}

// Gloo's threads do not record which call they execute. Calls and collectives come in the same
// order, so the n-th collective belongs to the n-th call, if their numbers are equal.
void match_host_calls(const Sources& sources, Timeline& timeline) {
  const Trace& trace = sources.trace;
  std::vector<uint32_t> calls, others;
  sources.lists.for_operators_named(
      trace,
      [](std::string_view name) {
        return name.starts_with("c10d::") &&
               (parse_collective(name).has_value() || is_other_call(name));
      },
      [&](uint32_t i) {
        (is_other_call(trace.name(trace.events[i])) ? others : calls).push_back(i);
      });
  std::vector<Collective*> unnamed;
  for (Collective& c : timeline.collectives) {
    if (c.args == kNoIndex) {
      unnamed.push_back(&c);
    }
  }
  if (unnamed.empty()) {
    return;
  }
  if (calls.size() + others.size() == unnamed.size()) {
    calls.insert(calls.end(), others.begin(), others.end());
  }
  if (calls.size() != unnamed.size()) {
    add_note(timeline,
             fmt::format("{} collectives but {} calls of c10d in the trace: units are not known",
                         unnamed.size(), calls.size()));
    return;
  }
  std::stable_sort(calls.begin(), calls.end(), [&](uint32_t a, uint32_t b) {
    return trace.events[a].start < trace.events[b].start;
  });
  for (size_t i = 0; i < calls.size(); ++i) {
    const Event& call = trace.events[calls[i]];
    // Gloo may name the algorithm's parts instead of the collective.
    unnamed[i]->kind = parse_collective(trace.name(call));
    unnamed[i]->issuer = calls[i];
    if (call.start <= unnamed[i]->when.start) {
      unnamed[i]->issued = call.start;
    }
  }
}

}  // namespace shardlens::analysis
