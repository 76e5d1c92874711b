#include "sim/calibrate/changes/recorded_checkpoints.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/workload/communications.h"

namespace shardlens::sim {
namespace {

using plan::Operator;
using plan::OperatorKind;
using plan::Phase;
using plan::WorkloadItem;

// One forward of a module that is a unit.
struct RecordedSpan {
  size_t begin = 0, end = 0;  // in the order: its pre-forward and its post-forward
  UnitId unit = 0;
  std::vector<uint32_t> operators;
  std::set<UnitId> units;  // those that run in it, and its own
};

// Whether the operator saves no tensor of the size of its operands.
bool saves_nothing(const Operator& op) {
  constexpr std::array<std::string_view, 12> kNames{
      "aten::add",   "aten::add_",   "aten::sub", "aten::copy_", "aten::_to_copy", "aten::cat",
      "aten::clone", "aten::narrow", "aten::sum", "aten::split", "aten::slice",    "aten::stack"};
  return std::ranges::find(kNames, op.name) != kNames.end();
}

// Whether autograd saves only operands, which it does before the operator runs.
bool saves_operands(const Operator& op) {
  constexpr std::array<std::string_view, 4> kNames{"aten::gelu", "aten::silu", "aten::mul",
                                                   "aten::mul_"};
  return op.kind == OperatorKind::kGemm || std::ranges::find(kNames, op.name) != kNames.end();
}

// Bytes of what comes to the operator: of its largest operand that is no table or weight.
Bytes input_of(const Operator& op) {
  switch (op.kind) {
    case OperatorKind::kEmbedding:
      return 0;
    case OperatorKind::kGemm:
      return op.batch * op.m * op.k * size_of(op.dtype);
    default:
      return op.written;
  }
}

class Checkpoints {
 public:
  Checkpoints(const plan::Workload& recorded,
              const plan::ResolvedPlan& plan,
              const std::string& source)
      : in_(recorded), plan_(plan), source_(source), out_(recorded) {
    position_.resize(in_.operators.size());
    for (size_t at = 0; at < in_.order.size(); ++at) {
      if (in_.order[at].kind == WorkloadItem::Kind::kOperator) {
        position_[in_.order[at].index] = at;
      }
    }
    counted_ = std::ranges::any_of(in_.operators, [](const Operator& op) {
      return op.phase != Phase::kOptimizer && op.saved > 0;
    });
  }

  // The checkpoint of a module, or of a unit of several modules all of theirs.
  void remove(uint32_t module) {
    const std::string& fqn = plan_.tree.modules[module].fqn;
    bool any = false, known = false;
    for (const RecordedSpan& span : spans_of(unit_of(module), fqn)) {
      const std::set<uint32_t> own(span.operators.begin(), span.operators.end());
      for (uint32_t i = 0; i < in_.operators.size(); ++i) {
        const Operator& op = in_.operators[i];
        if (op.phase != Phase::kRecompute || !own.contains(static_cast<uint32_t>(op.forward))) {
          continue;
        }
        left_out_.insert(i);
        out_.operators[static_cast<size_t>(op.forward)].saved += op.saved;
        known = known || op.saved > 0;
        any = true;
      }
      without_.insert(span.units.begin(), span.units.end());
    }
    if (!any || !known) {
      fail(
          fmt::format("the run does not say what {} {} without its checkpoint; record one step "
                      "without checkpoints",
                      fqn, any ? "keeps" : "runs"));
    }
  }

  void add(uint32_t module) {
    if (!counted_) {
      fail(
          "the run does not say what autograd keeps for backward, so checkpoints cannot be "
          "predicted; record it with shardlens.record, which counts it");
    }
    const UnitId id = unit_of(module);
    const std::vector<uint32_t>& together = plan_.units[id].modules;
    const std::string& fqn = plan_.tree.modules[module].fqn;
    const auto index = static_cast<size_t>(std::ranges::find(together, module) - together.begin());
    for (const RecordedSpan& span : spans_of(id, fqn)) {
      if (together.size() == 1) {
        add(span);
        continue;
      }
      require_alike(span, together.size(), fqn);
      if (!divided_.contains({id, span.begin})) {
        divide(span, together.size(), fqn);
        divided_.insert({id, span.begin});
      }
      add(part_of(span, index, together.size()));
    }
  }

  // The other modules of its unit: the recorded hooks are around all of them.
  [[nodiscard]] const std::vector<uint32_t>& modules_with(uint32_t module) const {
    return plan_.units[unit_of(module)].modules;
  }
  [[noreturn]] void fail_together(uint32_t module) const {
    fail(
        fmt::format("the run does not say which of what runs again in the unit {} is of {}; change "
                    "the checkpoints of all modules of the unit, or record a run in which it is a "
                    "unit of its own",
                    plan_.units[unit_of(module)].fqn, plan_.tree.modules[module].fqn));
  }

  plan::Workload take() {
    plan::Workload out = in_;
    out.operators.clear();
    out.hooks.clear();
    out.order.clear();
    std::vector<std::optional<WorkloadItem>> kept(in_.order.size());
    for (size_t at = 0; at < in_.order.size(); ++at) {
      for (const Again& each : inserted_[at]) {
        if (each.hook) {
          append_hook(in_.hooks[each.index], true, out);
        } else {
          append(each.op, out);
        }
      }
      const WorkloadItem& item = in_.order[at];
      if (item.kind == WorkloadItem::Kind::kCommunication) {
        kept[at] = out.order.emplace_back(item);
      } else if (item.kind == WorkloadItem::Kind::kHook) {
        const HookEvent& hook = in_.hooks[item.index];
        if (!hook.recompute || !without_.contains(hook.unit)) {
          kept[at] = append_hook(hook, hook.recompute, out);
        }
      } else if (!left_out_.contains(item.index)) {
        now_[item.index] = static_cast<uint32_t>(out.operators.size());
        kept[at] = append(out_.operators[item.index], out);
      }
    }
    plan::renumber_items(in_.order, kept, out);
    return out;
  }

 private:
  struct Again {  // an operator or a hook of a forward that runs again
    bool hook = false;
    uint32_t index = 0;  // hook
    Operator op;
  };

  [[noreturn]] void fail(const std::string& what) const { throw InputError(source_, what); }

  [[nodiscard]] UnitId unit_of(uint32_t module) const {
    const auto unit = std::ranges::find_if(plan_.units, [&](const plan::Unit& each) {
      return each.group == 0 && std::ranges::find(each.modules, module) != each.modules.end();
    });
    if (unit == plan_.units.end()) {
      fail_no_unit(plan_.tree.modules[module].fqn);
    }
    return static_cast<UnitId>(unit - plan_.units.begin());
  }
  [[noreturn]] void fail_no_unit(const std::string& fqn) const {
    fail(
        fmt::format("the trace does not say which operators belong to {}, because it is no unit; "
                    "record a run in which it is one to change its checkpoint",
                    fqn));
  }

  // `fqn`: the module, for errors.
  [[nodiscard]] std::vector<RecordedSpan> spans_of(UnitId unit, const std::string& fqn) const {
    std::vector<RecordedSpan> out;
    std::optional<RecordedSpan> open;
    for (size_t at = 0; at < in_.order.size(); ++at) {
      const WorkloadItem& item = in_.order[at];
      if (item.kind == WorkloadItem::Kind::kHook) {
        const HookEvent& hook = in_.hooks[item.index];
        const bool own = hook.unit == unit;
        if (own && hook.hook == Hook::kPreForward && !hook.recompute) {
          open = RecordedSpan{.begin = at, .unit = hook.unit};
        }
        if (open) {
          open->units.insert(hook.unit);
        }
        if (open && own && hook.hook == Hook::kPostForward && !hook.recompute) {
          open->end = at;
          out.push_back(*std::exchange(open, std::nullopt));
        }
      } else if (open && item.kind == WorkloadItem::Kind::kCommunication) {
        fail(
            fmt::format("{} communicates in its forward, which is not predicted to run again or "
                        "to run only once; record a run with other checkpoints",
                        fqn));
      } else if (open && in_.operators[item.index].phase == Phase::kForward) {
        open->operators.push_back(item.index);
      }
    }
    if (out.empty()) {
      fail_no_unit(fqn);
    }
    return out;
  }

  // Refuses a span whose operators are not the same ones this many times.
  void require_alike(const RecordedSpan& span, size_t parts, const std::string& fqn) const {
    const std::vector<uint32_t>& all = span.operators;
    const size_t size = all.size() / parts;
    bool alike = size > 0 && all.size() % parts == 0;
    for (size_t i = size; alike && i < all.size(); ++i) {
      const Operator &one = in_.operators[all[i]], &before = in_.operators[all[i - size]];
      alike = one.name == before.name && one.m == before.m && one.n == before.n &&
              one.k == before.k && one.written == before.written;
    }
    if (!alike) {
      fail(
          fmt::format("the trace does not say which operators belong to {}, because it is in a "
                      "unit with other modules, which do not run the same ones; record a run in "
                      "which it is a unit of its own to change its checkpoint",
                      fqn));
    }
  }

  // The position after an operator of a module of several, and after the hooks that end in it.
  [[nodiscard]] size_t end_after(uint32_t op) const {
    size_t at = position_[op] + 1;
    while (in_.order[at].kind == WorkloadItem::Kind::kHook &&
           in_.hooks[in_.order[at].index].hook == Hook::kPostForward) {
      ++at;
    }
    return at;
  }

  // The forward of one of the unit's modules, which run one after the other.
  [[nodiscard]] RecordedSpan part_of(const RecordedSpan& span, size_t index, size_t parts) const {
    const size_t size = span.operators.size() / parts;
    const auto first = span.operators.begin() + static_cast<std::ptrdiff_t>(index * size);
    const auto last = first + static_cast<std::ptrdiff_t>(size);
    RecordedSpan out = span;
    out.operators.assign(first, last);
    if (index > 0) {
      out.begin = end_after(*std::prev(first)) - 1;
    }
    if (index + 1 < parts) {
      out.end = end_after(out.operators.back());
    }
    return out;
  }

  void change(uint32_t op, int64_t Operator::*number, int64_t value) {
    in_.operators[op].*number = value;
    out_.operators[op].*number = value;
  }

  // Divides what the unit keeps, and its backward, among its modules, whose backwards run in the
  // reverse order.
  void divide(const RecordedSpan& span, size_t parts, const std::string& fqn) {
    const std::set<uint32_t> own(span.operators.begin(), span.operators.end());
    std::vector<uint32_t> backward;
    for (uint32_t i = 0; i < in_.operators.size(); ++i) {
      const Operator& op = in_.operators[i];
      if (op.phase == Phase::kBackward && own.contains(static_cast<uint32_t>(op.forward))) {
        backward.push_back(i);
      }
    }
    const size_t size = span.operators.size() / parts, each = backward.size() / parts;
    if (each == 0 || backward.size() % parts != 0) {
      fail(
          fmt::format("the trace does not say which operators of backward belong to {}, because it "
                      "is in a unit with other modules; record a run in which it is a unit of its "
                      "own to change its checkpoint",
                      fqn));
    }
    Bytes left = 0;
    for (const uint32_t op : span.operators) {
      left += in_.operators[op].saved;
      change(op, &Operator::saved, 0);
    }
    for (size_t part = 0; part < parts; ++part) {
      const Bytes saved = left / static_cast<Bytes>(parts - part);
      left -= saved;
      const uint32_t end = span.operators[(part + 1) * size - 1];
      change(end, &Operator::saved, saved);
      const size_t first = (parts - 1 - part) * each;
      for (size_t i = 0; i < each; ++i) {
        const uint32_t op = backward[first + i];
        in_.operators[op].forward = out_.operators[op].forward = static_cast<int32_t>(end);
        const bool third = each >= 3 && (i + 1 == each / 3 || i + 1 == each * 2 / 3);
        change(op, &Operator::frees, third ? saved / 3 : 0);
      }
    }
  }

  // See [Note: Checkpoints of a recorded pass].
  void add(const RecordedSpan& span) {
    const auto sized = [this](uint32_t i) { return in_.operators[i].written > 0; };
    const auto first = std::ranges::find_if(span.operators, sized);
    const auto saves =
        std::find_if(span.operators.rbegin(), span.operators.rend(),
                     [&](uint32_t i) { return sized(i) && !saves_nothing(in_.operators[i]); });
    if (first == span.operators.end() || saves == span.operators.rend()) {
      return;  // a module without operators
    }
    const uint32_t last = *saves;
    const bool runs_last = !saves_operands(in_.operators[last]);
    std::vector<Again> again;
    for (size_t at = span.begin + 1; at < span.end; ++at) {
      const WorkloadItem& item = in_.order[at];
      const bool at_last = item.kind == WorkloadItem::Kind::kOperator && item.index == last;
      if (at_last && !runs_last) {
        break;
      }
      if (item.kind == WorkloadItem::Kind::kHook) {
        again.push_back({.hook = true, .index = item.index, .op = {}});
      } else if (in_.operators[item.index].phase == Phase::kForward) {
        Operator& op = again.emplace_back(Again{.op = in_.operators[item.index]}).op;
        op.phase = Phase::kRecompute;
        op.forward = static_cast<int32_t>(item.index);
        op.saved = 0;
      }
      if (at_last) {
        break;
      }
    }
    save_again(span, input_of(in_.operators[*first]), again);
    const std::set<uint32_t> own(span.operators.begin(), span.operators.end());
    for (size_t at = span.end; at < in_.order.size(); ++at) {
      const WorkloadItem& item = in_.order[at];
      if (item.kind == WorkloadItem::Kind::kOperator &&
          in_.operators[item.index].phase == Phase::kBackward &&
          own.contains(static_cast<uint32_t>(in_.operators[item.index].forward))) {
        std::ranges::move(again, std::back_inserter(inserted_[at]));
        return;
      }
    }
  }

  // What each run of a unit's forward in the span keeps is saved by the last of its operators that
  // run again, or if it has none by the last before it.
  void save_again(const RecordedSpan& span, Bytes input, std::vector<Again>& again) {
    std::vector<Again*> operators;
    for (Again& each : again) {
      if (!each.hook) {
        operators.push_back(&each);
      }
    }
    if (operators.empty()) {
      return;
    }
    Bytes kept = input;  // less than the input is kept where it is a result that is kept anyway
    std::map<Operator*, Bytes> saved;
    for (const uint32_t end : span.operators) {
      Operator& op = out_.operators[end];
      if (op.saved == 0) {
        continue;
      }
      const auto after = std::ranges::find_if(operators, [end](const Again* each) {
        return each->op.forward > static_cast<int32_t>(end);
      });
      Operator& saver = (after == operators.begin() ? operators.front() : *std::prev(after))->op;
      const Bytes own = std::min(kept, op.saved);
      saver.saved += op.saved - own;
      saver.forward = static_cast<int32_t>(end);
      op.saved = own;
      kept -= own;
      for (Operator& backward : out_.operators) {
        if (backward.phase == Phase::kBackward && backward.forward == static_cast<int32_t>(end)) {
          backward.frees = std::min(backward.frees, saver.saved / 3);
        }
      }
    }
  }

  WorkloadItem append(Operator op, plan::Workload& out) const {
    if (op.forward >= 0) {
      op.forward = static_cast<int32_t>(now_.at(static_cast<uint32_t>(op.forward)));
    }
    out.operators.push_back(std::move(op));
    return out.order.emplace_back(WorkloadItem{WorkloadItem::Kind::kOperator,
                                               static_cast<uint32_t>(out.operators.size() - 1)});
  }

  static WorkloadItem append_hook(HookEvent hook, bool recompute, plan::Workload& out) {
    hook.recompute = recompute;
    out.hooks.push_back(hook);
    return out.order.emplace_back(
        WorkloadItem{WorkloadItem::Kind::kHook, static_cast<uint32_t>(out.hooks.size() - 1)});
  }

  plan::Workload in_;
  const plan::ResolvedPlan& plan_;
  const std::string& source_;
  plan::Workload out_;  // operators with what they save now
  bool counted_ = false;
  std::vector<size_t> position_;                   // by operator: in the order
  std::set<std::pair<UnitId, size_t>> divided_;    // spans of units of several modules, by begin
  std::set<uint32_t> left_out_;                    // operators
  std::set<UnitId> without_;                       // units whose forward runs once now
  std::map<size_t, std::vector<Again>> inserted_;  // by position in the order
  std::map<uint32_t, uint32_t> now_;               // by operator: its index
};

}  // namespace

plan::Workload with_checkpoints(const plan::Workload& recorded,
                                const plan::ResolvedPlan& recorded_plan,
                                const plan::ResolvedPlan& plan,
                                const std::string& source) {
  const std::vector<uint32_t>&before = recorded_plan.checkpointed_modules,
        &now = plan.checkpointed_modules;
  if (before == now) {
    return recorded;
  }
  Checkpoints out(recorded, recorded_plan, source);
  const auto has = [](const std::vector<uint32_t>& modules, uint32_t module) {
    return std::ranges::find(modules, module) != modules.end();
  };
  for (const uint32_t module : before) {
    if (has(now, module)) {
      continue;
    }
    const std::vector<uint32_t>& together = out.modules_with(module);
    if (std::ranges::any_of(together,
                            [&](uint32_t each) { return has(before, each) && has(now, each); })) {
      out.fail_together(module);
    }
    const auto first =
        std::ranges::find_if(together, [&](uint32_t each) { return has(before, each); });
    if (*first == module) {
      out.remove(module);
    }
  }
  for (const uint32_t module : now) {
    if (has(before, module)) {
      continue;
    }
    if (std::ranges::any_of(out.modules_with(module),
                            [&](uint32_t each) { return has(before, each); })) {
      out.fail_together(module);
    }
    out.add(module);
  }
  return out.take();
}

}  // namespace shardlens::sim
