#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "profiler/analysis/recover/recorded_operators.h"
#include "profiler/analysis/recover/recovered_plan.h"

namespace shardlens::analysis {
namespace {

using plan::Operator;
using trace::Event;
using trace::Trace;

// Operators of forward that are not known to run again yet.
class Unrepeated {
 public:
  explicit Unrepeated(const std::vector<Operator>& operators) : operators_(operators) {
    for (uint32_t i = 0; i < operators.size(); ++i) {
      if (operators[i].phase == plan::Phase::kForward) {
        of_unit_[{operators[i].unit, operators[i].name}].insert(i);
        of_any_[operators[i].name].insert(i);
      }
    }
  }

  // Sets what each operator of the piece repeats: the first operators that are the same ones, one
  // after the other. A selective checkpoint leaves some out: each then repeats the first one of its
  // unit and name after the one before it. Parts of a forward that begin in the backward of an
  // inner unit are counted to it: they repeat the first such operator of any unit, or else `last`.
  void match(std::span<Operator> piece, uint32_t last) {
    const std::optional<uint32_t> whole = whole_run(piece);
    std::map<UnitId, uint32_t> from;
    for (size_t i = 0; i < piece.size(); ++i) {
      Operator& op = piece[i];
      std::optional<uint32_t> found = whole ? std::optional(*whole + static_cast<uint32_t>(i))
                                            : first(of_unit_[{op.unit, op.name}], from[op.unit]);
      found = found ? found : first(of_any_[op.name], 0);
      if (found) {
        of_unit_[{operators_[*found].unit, op.name}].erase(*found);
        of_any_[op.name].erase(*found);
        from[operators_[*found].unit] = *found + 1;
      }
      op.forward = static_cast<int32_t>(found.value_or(last));
    }
  }

 private:
  using Indices = std::set<uint32_t>;

  // The first one from `from` on, or else the first one.
  static std::optional<uint32_t> first(const Indices& among, uint32_t from) {
    const auto found = among.lower_bound(from);
    return among.empty() ? std::nullopt
                         : std::optional(found == among.end() ? *among.begin() : *found);
  }
  [[nodiscard]] bool has(uint32_t i, const Operator& like) const {
    const auto found = of_unit_.find({like.unit, like.name});
    return found != of_unit_.end() && found->second.contains(i);
  }
  // Where the piece's operators are, one after the other.
  [[nodiscard]] std::optional<uint32_t> whole_run(std::span<const Operator> piece) const {
    const auto begins =
        piece.empty() ? of_unit_.end() : of_unit_.find({piece.front().unit, piece.front().name});
    if (begins == of_unit_.end()) {
      return std::nullopt;
    }
    for (const uint32_t begin : begins->second) {
      uint32_t at = begin;
      if (std::ranges::all_of(piece, [&](const Operator& op) { return has(at++, op); })) {
        return begin;
      }
    }
    return std::nullopt;
  }

  const std::vector<Operator>& operators_;
  std::map<std::pair<UnitId, std::string>, Indices> of_unit_;
  std::map<std::string, Indices> of_any_;
};

class WorkloadRecovery {
 public:
  WorkloadRecovery(const Trace& trace,
                   const FsdpLog& log,
                   const Sections& sections,
                   uint32_t pass,
                   const std::vector<uint32_t>& unit_ids)
      : trace_(trace), log_(log), sections_(sections), pass_(pass), root_(unit_ids.front()) {
    for (size_t i = 0; i < unit_ids.size(); ++i) {
      id_of_.emplace(unit_ids[i], static_cast<UnitId>(i));
    }
  }

  RecoveredWorkload run(std::vector<trace::Diagnostic>& diagnostics) {
    find_window();
    hooks();
    operators();
    find_batch(trace_, window_, out_.workload);
    std::stable_sort(items_.begin(), items_.end(),
                     [](const Item& a, const Item& b) { return a.time < b.time; });
    place();
    find_forward();
    if (out_.unshaped > 0) {
      trace::add_diagnostic(diagnostics, trace::Severity::kNote,
                            "operators without shapes in the trace (record_shapes=True records "
                            "them) have no sizes in "
                            "the workload",
                            out_.unshaped);
    }
    out_.window = window_;
    return std::move(out_);
  }

 private:
  struct Item {
    Nanoseconds time;
    Interval when;
    bool is_hook;
    HookEvent hook;
    Operator op;
  };

  // From the pass's first hook to the end of the optimizer's step.
  void find_window() {
    bool any = false;
    for (const FsdpEvent& e : log_.events) {
      if (e.pass == pass_) {
        window_.start = any ? std::min(window_.start, e.when.start) : e.when.start;
        window_.end = any ? std::max(window_.end, e.when.end) : e.when.end;
        any = true;
      }
    }
    backward_end_ = window_.end;
    Nanoseconds next = std::numeric_limits<Nanoseconds>::max();
    for (const FsdpEvent& e : log_.events) {
      if (e.pass > pass_) {
        next = std::min(next, e.when.start);
      }
    }
    for (const Sections::Part& part : sections_.parts()) {
      const bool own =
          part.owner.section == Section::kOptimizer || part.owner.section == Section::kClip;
      if (own && part.when.start >= backward_end_ && part.when.end <= next) {
        window_.end = std::max(window_.end, part.when.end);
        optimized_ = optimized_ || part.owner.section == Section::kOptimizer;
      }
    }
  }

  void hook(Nanoseconds time,
            const Interval& when,
            Hook kind,
            UnitId unit,
            bool grad_mode = true,
            bool recompute = false) {
    Item item{time, when, true, {}, {}};
    item.hook.hook = kind;
    item.hook.unit = unit;
    item.hook.grad_mode = grad_mode;
    item.hook.recompute = recompute;
    items_.push_back(std::move(item));
  }

  void hooks() {
    const std::map<uint32_t, RootForward> forwards = root_forwards();
    for (const auto& [number, each] : forwards) {
      const Interval start{each.start, each.start}, end{each.end, each.end};
      hook(each.start, start, Hook::kRootPreForward, 0, each.grad);
      if (!each.has_root) {
        hook(each.start, start, Hook::kPreForward, 0, each.grad);
        hook(each.end, end, Hook::kPostForward, 0, each.grad);
      }
    }
    for (const FsdpEvent& e : log_.events) {
      const auto id = id_of_.find(e.unit);
      if (e.pass != pass_ || id == id_of_.end()) {
        continue;
      }
      if (const auto kind = hook_of(e.call)) {
        const bool forward = *kind == Hook::kPreForward || *kind == Hook::kPostForward;
        hook(*kind == Hook::kPostForward ? e.when.end : e.when.start, e.when, *kind, id->second,
             e.backward || e.grad, forward && e.backward);
      }
    }
    hook(backward_end_, {backward_end_, backward_end_}, Hook::kBackwardEnd, 0);
    if (optimized_) {
      hook(window_.end, {window_.end, window_.end}, Hook::kOptimizerDone, 0);
    }
  }

  // A forward of the root in the pass. A root without parameters has no hooks of its own; its
  // forward contains all others and ends with the last of them.
  struct RootForward {
    Nanoseconds start = std::numeric_limits<Nanoseconds>::max();
    Nanoseconds end = std::numeric_limits<Nanoseconds>::min();
    bool has_root = false, grad = true;
  };

  [[nodiscard]] std::map<uint32_t, RootForward> root_forwards() const {
    std::map<uint32_t, RootForward> out;
    for (const FsdpEvent& e : log_.events) {
      if (e.pass != pass_) {
        continue;
      }
      RootForward& at = out[e.forward];
      at.start = std::min(at.start, e.when.start);
      at.grad = e.grad;
      const bool forward = e.call == FsdpCall::kPreForward || e.call == FsdpCall::kPostForward;
      at.has_root = at.has_root || (forward && e.unit == root_);
      if (e.call == FsdpCall::kPostForward && !e.backward) {
        at.end = std::max(at.end, e.when.end);
      }
    }
    for (auto& [number, each] : out) {  // without a post-forward the end is not known
      each.has_root = each.has_root || each.end < each.start;
    }
    return out;
  }

  void operators() {
    const std::vector<bool> recomputed = recomputed_operators(trace_, sections_);
    for (const uint32_t index : leaf_operators(trace_)) {
      const Event& event = trace_.events[index];
      if (event.start < window_.start || event.start >= window_.end) {
        continue;
      }
      const Owner owner = sections_.at(event.track, event.start);
      if (owner.section == Section::kNone || in_hook(event)) {
        continue;
      }
      TracedOperator recorded = recorded_operator(trace_, event, owner.section);
      Item item{event.start, {event.start, event.end()}, false, {}, std::move(recorded.op)};
      Operator& op = item.op;
      const auto id = id_of_.find(owner.unit == kNoUnit ? root_ : owner.unit);
      op.unit = id == id_of_.end() ? 0 : id->second;
      op.module = owner.unit == kNoUnit ? "" : log_.units[owner.unit].fqn;
      op.phase = recomputed[index] ? plan::Phase::kRecompute : op.phase;
      out_.unshaped += recorded.shaped ? 0 : 1;
      items_.push_back(std::move(item));
    }
  }

  // Whether the operator is FSDP's own work: copies, casts, concatenations.
  [[nodiscard]] bool in_hook(const Event& event) const {
    auto after =
        std::upper_bound(log_.events.begin(), log_.events.end(), event.start,
                         [](Nanoseconds t, const FsdpEvent& e) { return t < e.when.start; });
    for (int looked = 0; after != log_.events.begin() && looked < 16; ++looked) {
      --after;
      if (after->track == event.track && event.start < after->when.end) {
        return true;
      }
    }
    return false;
  }

  void place() {
    plan::Workload& workload = out_.workload;
    for (Item& item : items_) {
      out_.times.push_back(item.when);
      if (item.is_hook) {
        workload.order.push_back(
            {plan::WorkloadItem::Kind::kHook, static_cast<uint32_t>(workload.hooks.size())});
        workload.hooks.push_back(item.hook);
      } else {
        workload.order.push_back({plan::WorkloadItem::Kind::kOperator,
                                  static_cast<uint32_t>(workload.operators.size())});
        workload.operators.push_back(std::move(item.op));
      }
    }
  }

  // Matches runs of backward operators, from the first on, with runs of forward operators of the
  // same unit, from the last on.
  void find_forward() {
    std::vector<Operator>& operators = out_.workload.operators;
    std::vector<uint32_t> ends;  // the last operator of each run of forward
    for (uint32_t i = 0; i < operators.size(); ++i) {
      if (operators[i].phase != plan::Phase::kForward && operators[i].phase != plan::Phase::kLoss) {
        continue;
      }
      if (ends.empty() || operators[ends.back()].unit != operators[i].unit) {
        ends.push_back(i);
      } else {
        ends.back() = i;
      }
    }
    std::unordered_map<UnitId, std::vector<uint32_t>> left;  // the latest run is at the back
    for (const uint32_t end : ends) {
      left[operators[end].unit].push_back(end);
    }
    std::optional<UnitId> running;
    for (Operator& op : operators) {
      if (op.phase != plan::Phase::kBackward) {
        continue;
      }
      std::vector<uint32_t>& runs = left[op.unit];
      if (running && *running != op.unit) {
        // The previous run is finished, unless it was the unit's only one.
        std::vector<uint32_t>& before = left[*running];
        if (before.size() > 1) {
          before.pop_back();
        }
      }
      running = op.unit;
      op.forward = runs.empty() ? -1 : static_cast<int32_t>(runs.back());
    }
    if (!ends.empty()) {
      find_repeated(ends.back());
    }
  }

  // What runs again in one piece, without backward in between, repeats operators in their order.
  // Checkpoints run again from the last one to the first one, so the pieces are matched from the
  // latest one on.
  void find_repeated(uint32_t last) {
    std::vector<Operator>& operators = out_.workload.operators;
    Unrepeated left(operators);
    const auto repeats = [&](size_t i) { return operators[i].phase == plan::Phase::kRecompute; };
    for (size_t end = operators.size(); end > 0;) {
      size_t begin = end;
      while (begin > 0 && repeats(begin - 1)) {
        --begin;
      }
      left.match(std::span(operators).subspan(begin, end - begin), last);
      end = std::max(begin, size_t{1}) - 1;
    }
  }

  const Trace& trace_;
  const FsdpLog& log_;
  const Sections& sections_;
  uint32_t pass_, root_;
  std::unordered_map<uint32_t, UnitId> id_of_;
  Interval window_;
  Nanoseconds backward_end_ = 0;
  bool optimized_ = false;
  std::vector<Item> items_;
  RecoveredWorkload out_;
};

}  // namespace

std::optional<Hook> hook_of(FsdpCall call) {
  switch (call) {
    case FsdpCall::kPreForward:
      return Hook::kPreForward;
    case FsdpCall::kPostForward:
      return Hook::kPostForward;
    case FsdpCall::kPreBackward:
      return Hook::kPreBackward;
    case FsdpCall::kPostBackward:
      return Hook::kGradsReady;
    default:
      return std::nullopt;
  }
}

RecoveredWorkload recover_workload(const Trace& trace,
                                   const FsdpLog& log,
                                   const Sections& sections,
                                   uint32_t pass,
                                   const std::vector<uint32_t>& unit_ids,
                                   std::vector<trace::Diagnostic>& diagnostics) {
  return WorkloadRecovery(trace, log, sections, pass, unit_ids).run(diagnostics);
}

}  // namespace shardlens::analysis
