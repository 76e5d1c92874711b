#include "profiler/analysis/recover/program_units.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "profiler/analysis/events/names.h"
#include "profiler/analysis/fsdp_log/sections.h"
#include "profiler/analysis/recover/recorded_operators.h"
#include "profiler/analysis/timeline/gathering_passes.h"

namespace shardlens::analysis {
namespace {

using trace::Event;
using trace::ShardedParameter;
using trace::Trace;
using Moves = std::vector<ProgramMove>;
using Parameters = std::vector<uint32_t>;  // of Trace::sharded_parameters, ascending

// Kernels that a compiler wrote for a CPU are not in a trace. So in a longer gap something may run.
constexpr Nanoseconds kLongestGap = 100'000;

// "layers.0.q.weight" → "layers.0.q".
std::string_view module_around(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

// Names groups of parameters by modules.
class GroupNames {
 public:
  explicit GroupNames(const std::vector<ShardedParameter>& all) : all_(all) {
    for (uint32_t i = 0; i < all.size(); ++i) {
      for (std::string_view at = all[i].name; !at.empty(); at = module_around(at)) {
        ++inside_[std::string(at)];
      }
    }
  }

  // The outermost modules, up to blocks, that have only these parameters, "norm, head"; the
  // parameter itself where its module has others too. "": all.
  [[nodiscard]] std::string of(const Parameters& group) const {
    if (group.size() == all_.size()) {
      return "";
    }
    std::map<std::string_view, int64_t> in_group;
    for (const uint32_t i : group) {
      for (std::string_view at = all_[i].name; !at.empty(); at = module_around(at)) {
        ++in_group[at];
      }
    }
    std::string out;
    std::set<std::string_view> named;
    for (const uint32_t i : group) {
      std::string_view best = all_[i].name;
      for (std::string_view at = best; !at.empty() && in_group[at] == inside_.at(std::string(at));
           at = module_around(at)) {
        best = at;
        if (at == all_[i].unit) {
          break;  // a list of blocks is no module that runs
        }
      }
      if (named.insert(best).second) {
        out += (out.empty() ? "" : ", ") + std::string(best);
      }
    }
    return out;
  }

 private:
  const std::vector<ShardedParameter>& all_;
  std::map<std::string, int64_t> inside_;  // by module: its parameters
};

// The program's own work around its collectives, and the operators of the model.
class HostWork {
 public:
  explicit HostWork(const Trace& trace) : own_(trace.tracks.size()), model_(trace.tracks.size()) {
    for (const Event& event : trace.events) {
      if (event.phase == trace::EventPhase::kComplete &&
          event.category == trace::Category::kCpuOp && is_own(trace.name(event))) {
        own_.at(event.track)
            .push_back({{event.start, event.end()}, trace.name(event).starts_with(kBucketing)});
      }
    }
    for (std::vector<Own>& own : own_) {
      std::ranges::sort(own, [](const Own& a, const Own& b) {
        return a.when.start != b.when.start ? a.when.start < b.when.start : a.when.end > b.when.end;
      });
      std::vector<Own> outermost;
      for (const Own& each : own) {
        if (outermost.empty() || each.when.start >= outermost.back().when.end) {
          outermost.push_back(each);
        }
      }
      own = std::move(outermost);
    }
    for (const uint32_t i : leaf_operators(trace)) {
      const Event& event = trace.events[i];
      if (around(event.track, event.start) == nullptr) {
        model_.at(event.track).push_back(event.start);
      }
    }
    for (std::vector<Nanoseconds>& starts : model_) {
      std::ranges::sort(starts);
    }
  }

  // A call of a collective, with the copies into its bucket and what DTensor does around it.
  [[nodiscard]] Interval call_of(const Event& call) const {
    Interval out{call.start, call.end()};
    const Own* own = around(call.track, call.start);
    if (own == nullptr) {
      return out;
    }
    out = own->when;
    if (own != own_[call.track].data()) {
      const Own& before = *std::prev(own);
      if (before.bucketing && adjacent(call.track, before.when.end, out.start)) {
        out.start = before.when.start;
      }
    }
    return out;
  }

  // Whether no operator of the model ran on the thread between the two.
  [[nodiscard]] bool adjacent(uint32_t track, Nanoseconds end, Nanoseconds start) const {
    const std::vector<Nanoseconds>& starts = model_[track];
    const auto next = std::ranges::lower_bound(starts, end);
    return start - end <= kLongestGap && (next == starts.end() || *next >= start);
  }

 private:
  struct Own {
    Interval when;
    bool bucketing = false;
  };
  static constexpr std::string_view kBucketing = "bucketing::_pre_bucket";

  static bool is_own(std::string_view name) {
    return is_c10d_operator(name) || name.starts_with(kBucketing) || is_redistribution(name);
  }

  [[nodiscard]] const Own* around(uint32_t track, Nanoseconds instant) const {
    const std::vector<Own>& own = own_[track];
    const auto after =
        std::ranges::upper_bound(own, instant, {}, [](const Own& each) { return each.when.start; });
    const bool found = after != own.begin() && instant < std::prev(after)->when.end;
    return found ? &*std::prev(after) : nullptr;
  }

  std::vector<std::vector<Own>> own_;            // by track, disjoint
  std::vector<std::vector<Nanoseconds>> model_;  // by track: starts of the model's operators
};

class ProgramLog {
 public:
  ProgramLog(const Trace& trace, const Timeline& timeline)
      : trace_(trace),
        timeline_(timeline),
        all_(trace.sharded_parameters),
        work_(trace),
        of_parameter_(all_.size()),
        passes_(gathering_passes(trace, timeline)) {
    log_.source = FsdpSource::kProgram;
  }

  FsdpLog take() {
    find_units();
    for (pass_ = 0; pass_ < passes_.size(); ++pass_) {
      if (used_[pass_]) {
        add_pass(passes_[pass_]);
      }
    }
    std::ranges::stable_sort(log_.events, {}, [](const FsdpEvent& e) { return e.when.start; });
    log_.index_collectives();
    return std::move(log_);
  }

  // Sets the units of the collectives that are in the log.
  void name_collectives(std::vector<Collective>& collectives) const {
    for (Collective& each : collectives) {
      each.unit.reset();
    }
    for (size_t i = 0; i < passes_.size(); ++i) {
      const std::set<uint32_t> kept = kept_units(passes_[i].moves);
      for (const ProgramMove& move : passes_[i].moves) {
        if (!used_[i]) {
          continue;
        }
        Collective& each = collectives[move.collective];
        each.unit = unit_of(move);
        if (is_part(move, kept)) {
          each.part = UnitPart::kOther;
          each.section = Section::kBackward;
          each.wait = move.wait;
          each.ranks = each.ranks > 0 ? each.ranks : all_[move.parameters.front()].ranks;
        }
      }
    }
  }

 private:
  [[nodiscard]] uint32_t unit_of(const ProgramMove& move) const {
    return of_parameter_[move.parameters.front()].value();
  }

  [[nodiscard]] int64_t elements_of(const Parameters& parameters) const {
    int64_t out = 0;
    for (const uint32_t each : parameters) {
      out += all_[each].elements;
    }
    return out;
  }

  // The units that backward does not gather: see [Note: Parts gathered again].
  [[nodiscard]] std::set<uint32_t> kept_units(const Moves& pass) const {
    std::map<uint32_t, int64_t> again;  // elements
    for (const ProgramMove& move : pass) {
      if (move.backward && gathers(move) && !move.parameters.empty() &&
          of_parameter_[move.parameters.front()]) {
        again[unit_of(move)] += elements_of(move.parameters);
      }
    }
    std::set<uint32_t> out;
    for (const auto& [unit, elements] : again) {
      if (!gathers_unit(elements, elements_of(groups_[unit]))) {
        out.insert(unit);
      }
    }
    return out;
  }
  [[nodiscard]] bool is_part(const ProgramMove& move, const std::set<uint32_t>& kept) const {
    return move.backward && gathers(move) && kept.contains(unit_of(move));
  }

  struct Part {  // what the host did: a call, or a wait
    Interval when;
    const ProgramMove* move = nullptr;
    bool waits = false;
    uint32_t track = 0;
  };

  [[nodiscard]] const Collective& collective(const ProgramMove& move) const {
    return timeline_.collectives[move.collective];
  }
  [[nodiscard]] bool gathers(const ProgramMove& move) const {
    return collective(move).kind == CollectiveKind::kAllGather;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw InputError(trace_.metadata.source,
                     fmt::format("{}, so no plan describes how the program gathers its parameters: "
                                 "`shardlens analyze` shows where the time went",
                                 what));
  }

  [[nodiscard]] std::string words(const ProgramMove& move) const {
    const Collective& c = collective(move);
    const std::string unit = c.unit ? timeline_.units[*c.unit] : "";
    return fmt::format("the {} of {} in {}", name_of(*c.kind),
                       unit.empty() ? "the root" : "'" + unit + "'",
                       move.backward ? "backward" : "forward");
  }

  // The first pass with a forward and a backward that can be described decides what the units are.
  void find_units() {
    std::string problem = "no step in the trace gathers parameters and reduces their gradients";
    bool first = true;
    for (const GatheringPass& pass : passes_) {
      const auto is_gather = [this](const ProgramMove& each) { return gathers(each); };
      if (std::ranges::none_of(pass.moves, is_gather) ||
          std::ranges::all_of(pass.moves, is_gather)) {
        continue;
      }
      take_units(pass.moves);
      const std::string found = problem_of(pass.moves);
      problem = first || found.empty() ? found : problem;
      first = false;
      if (problem.empty()) {
        break;
      }
    }
    if (!problem.empty()) {
      refuse(problem);
    }
    for (const GatheringPass& pass : passes_) {
      used_.push_back(problem_of(pass.moves).empty());
    }
  }

  void take_units(const Moves& pass) {
    log_.units = {{"", std::nullopt}};
    of_parameter_.assign(all_.size(), std::nullopt);
    groups_.assign(1, {});
    const GroupNames names(all_);
    for (const ProgramMove& move : pass) {
      if (move.backward || !gathers(move) || move.parameters.empty()) {
        continue;
      }
      const std::string name = names.of(move.parameters);
      if (!name.empty()) {
        log_.units.push_back({name, std::nullopt});
        groups_.emplace_back();
      }
      const auto unit = static_cast<uint32_t>(name.empty() ? 0 : log_.units.size() - 1);
      groups_[unit] = move.parameters;
      for (const uint32_t parameter : move.parameters) {
        of_parameter_[parameter] = unit;
      }
    }
  }

  // Why the pass does not gather and reduce the units; "": it does.
  [[nodiscard]] std::string problem_of(const Moves& pass) const {
    const std::set<uint32_t> kept = kept_units(pass);
    std::set<std::pair<uint32_t, bool>> gathered;  // unit, in backward
    for (const ProgramMove& move : pass) {
      if (move.parameters.empty()) {
        return fmt::format("{} {}",
                           collective(move).basis == Basis::kAmbiguous
                               ? "several orders of the model's parameters are possible for"
                               : "the order of the model's parameters does not say what is in",
                           words(move));
      }
      const std::optional<uint32_t> unit = of_parameter_[move.parameters.front()];
      Parameters expected = unit ? groups_[*unit] : Parameters();
      if (!gathers(move)) {  // it has no gradients of frozen parameters
        std::erase_if(expected, [this](uint32_t each) { return !all_[each].trained; });
      }
      // Backward may need only some of them.
      const bool fits = gathers(move) && move.backward
                            ? std::ranges::includes(expected, move.parameters)
                            : expected == move.parameters;
      if (!fits) {
        return fmt::format("{} has other parameters together than the gathers of forward have",
                           words(move));
      }
      if (gathers(move) && !is_part(move, kept) &&
          !gathered.insert({*unit, move.backward}).second) {
        return fmt::format("{} is one of several", words(move));
      }
    }
    return "";
  }

  void add_pass(const GatheringPass& pass) {
    hook_.reset();
    begun_.clear();
    has_backward_ = std::ranges::any_of(pass.moves, &ProgramMove::backward);
    std::vector<Part> forward, backward;
    const std::set<uint32_t> kept = kept_units(pass.moves);
    for (const ProgramMove& move : pass.moves) {
      if (!is_part(move, kept)) {
        add_parts(move, move.backward ? backward : forward);
      }
    }
    if (forward.empty()) {
      return;
    }
    for (std::vector<Part>* parts : {&forward, &backward}) {
      std::ranges::stable_sort(*parts, {}, [](const Part& part) { return part.when.start; });
    }
    log_.root_forwards.push_back(forward.front().when.start);
    add_gathers(forward, false);
    Nanoseconds end = forward.back().when.end;
    if (!backward.empty()) {
      const Nanoseconds begun = pass.backward.value_or(backward.front().when.start);
      end = std::clamp(begun, end, std::max(end, backward.front().when.start));
    }
    if (hook_) {
      add(FsdpCall::kPostForward, *hook_, forward.back().track, {end, end}, false);
    }
    hook_.reset();
    backward_at_ = end;
    add_backward(backward);
  }

  void add_parts(const ProgramMove& move, std::vector<Part>& out) const {
    const Event& call = trace_.events[collective(move).issuer];
    Part issues{work_.call_of(call), &move, false, call.track};
    Part waits{{issues.when.end, issues.when.end}, &move, true, call.track};
    if (move.wait != trace::kNoIndex) {
      const Event& wait = trace_.events[move.wait];
      waits.when = {wait.start, wait.end()};
      waits.track = wait.track;
      if (issues.when.start < wait.start && wait.start < issues.when.end) {
        waits.when.end = std::max(issues.when.end, wait.end());  // DTensor waits where it calls
        issues.when.end = wait.start;
      }
    }
    out.push_back(issues);
    out.push_back(waits);
  }

  FsdpEvent& add(
      FsdpCall call, uint32_t unit, uint32_t track, const Interval& when, bool backward) {
    FsdpEvent& out = log_.events.emplace_back();
    out.call = call;
    out.unit = out.hook_unit = unit;
    out.track = track;
    out.when = when;
    out.backward = backward;
    out.pass = out.forward = pass_;
    out.grad = has_backward_;
    return out;
  }

  [[nodiscard]] bool follows(const Part& part, const Part* before) const {
    return before != nullptr && before->track == part.track &&
           work_.adjacent(part.track, before->when.end, part.when.start);
  }

  // Gathers of a forward or a backward. A unit's hook begins with the calls right before its wait.
  void add_gathers(std::span<const Part> parts, bool backward) {
    std::vector<const Part*> calls;  // not in a hook yet
    const Part* before = nullptr;
    Nanoseconds begin = 0;  // of a hook that ends with the next wait
    for (const Part& part : parts) {
      const bool goes_on = follows(part, before) && !before->waits && gathers(*before->move);
      before = &part;
      if (!gathers(*part.move)) {
        continue;
      }
      begin = goes_on ? begin : part.when.start;
      if (!part.waits) {
        calls.push_back(&part);
        continue;
      }
      // Other calls are in the hook that is nearer.
      std::vector<const Part*> own;
      for (const Part* call : calls) {
        const bool nearer =
            hook_ && call->when.start - hook_end_ < part.when.start - call->when.end;
        nearer ? add_unshard(*call, backward) : own.push_back(call);
      }
      calls.clear();
      const uint32_t unit = unit_of(*part.move);
      if (hook_ && !backward) {
        add(FsdpCall::kPostForward, *hook_, part.track, {begin, begin}, false);
      }
      hook_ = unit;
      hook_end_ = part.when.end;
      add(backward ? FsdpCall::kPreBackward : FsdpCall::kPreForward, unit, part.track,
          {begin, part.when.end}, backward);
      for (const Part* call : own) {
        add_unshard(*call, backward);
      }
      add(FsdpCall::kCopyOut, unit, part.track, part.when, backward);
      begun_.insert({unit, backward});
    }
    for (const Part* call : calls) {
      add_unshard(*call, backward);
    }
  }

  // In the hook of the unit that was waited for last.
  void add_unshard(const Part& call, bool backward) {
    if (!hook_) {
      return;  // nothing was waited for
    }
    const uint32_t unit = unit_of(*call.move);
    FsdpEvent& e = add(FsdpCall::kUnshard, unit, call.track, call.when, backward);
    e.hook_unit = *hook_;
    if (unit != *hook_) {
      e.unshard_by = backward ? UnshardBy::kExplicitPrefetch : UnshardBy::kForwardPrefetch;
      log_.prefetches.push_back({*hook_, unit, backward, true, call.when.start, pass_});
    }
  }

  void add_backward(std::span<const Part> parts) {
    add_gathers(parts, true);
    std::optional<Part> open;  // the hook of the last reduction, with the waits that follow it
    const auto close = [&] {
      if (open) {
        const uint32_t unit = unit_of(*open->move);
        if (begun_.insert({unit, true}).second) {
          const Nanoseconds at = std::min(backward_at_, open->when.start);
          add(FsdpCall::kPreBackward, unit, open->track, {at, at}, true);
        }
        add(FsdpCall::kPostBackward, unit, open->track, open->when, true);
        backward_at_ = open->when.end;
        open.reset();
      }
    };
    std::set<uint32_t> reduced;
    for (const Part& part : parts) {
      if (gathers(*part.move)) {
        close();
        continue;
      }
      const bool together = open && follows(part, &*open);
      const bool first = !part.waits && reduced.insert(unit_of(*part.move)).second;
      if (!first && together) {
        open->when.end = std::max(open->when.end, part.when.end);
        continue;
      }
      close();
      if (first) {
        open = part;
        reductions_.push_back(part);
      } else if (part.when.length() > 0) {
        add(FsdpCall::kReduceWait, unit_of(*part.move), part.track, part.when, true);
      }
    }
    close();
    for (const Part& part : reductions_) {
      add(FsdpCall::kReduce, unit_of(*part.move), part.track, part.when, true);
    }
    reductions_.clear();
  }

  const Trace& trace_;
  const Timeline& timeline_;
  const std::vector<ShardedParameter>& all_;
  HostWork work_;
  FsdpLog log_;
  std::vector<std::optional<uint32_t>> of_parameter_;  // the unit
  std::vector<Parameters> groups_;                     // by unit
  std::vector<GatheringPass> passes_;
  std::vector<bool> used_;  // by pass: whether it is in the log
  // Of the pass that is being added.
  uint32_t pass_ = 0;
  bool has_backward_ = false;
  std::optional<uint32_t> hook_;  // the unit that was waited for last
  Nanoseconds hook_end_ = 0;      // when it had been
  Nanoseconds backward_at_ = 0;   // when the backward of the next unit begins
  std::vector<Part> reductions_;
  std::set<std::pair<uint32_t, bool>> begun_;  // unit, in backward
};

}  // namespace

Timeline with_program_units(const Trace& trace, const Timeline& timeline) {
  ProgramLog program(trace, timeline);
  Timeline out = timeline;
  out.fsdp = program.take();
  out.sections = Sections(trace, out.lists, out.fsdp);
  out.units.clear();
  for (const FsdpUnit& unit : out.fsdp.units) {
    out.units.push_back(unit.fqn);
  }
  program.name_collectives(out.collectives);
  return out;
}

}  // namespace shardlens::analysis
