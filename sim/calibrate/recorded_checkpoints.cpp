#include "sim/calibrate/recorded_checkpoints.h"

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
struct Span {
  size_t begin = 0, end = 0;  // in the order: its pre-forward and its post-forward
  UnitId unit = 0;
  std::vector<uint32_t> operators;
  std::set<UnitId> units;  // those that run in it, and its own
};

// Of operators that save no tensor of the size of their operands.
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
    counted_ = std::ranges::any_of(in_.operators, [](const Operator& op) {
      return op.phase != Phase::kOptimizer && op.saved > 0;
    });
  }

  void remove(uint32_t module) {
    const std::string& fqn = plan_.tree.modules[module].fqn;
    bool any = false, known = false;
    for (const Span& span : spans_of(module)) {
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
    for (const Span& span : spans_of(module)) {
      add(span);
    }
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

  std::vector<Span> spans_of(uint32_t module) const {
    const std::string& fqn = plan_.tree.modules[module].fqn;
    const auto unit = std::ranges::find_if(plan_.units, [&](const plan::Unit& each) {
      return each.group == 0 && each.modules == std::vector<uint32_t>{module};
    });
    std::vector<Span> out;
    std::optional<Span> open;
    for (size_t at = 0; at < in_.order.size() && unit != plan_.units.end(); ++at) {
      const WorkloadItem& item = in_.order[at];
      if (item.kind == WorkloadItem::Kind::kHook) {
        const HookEvent& hook = in_.hooks[item.index];
        const bool own = hook.unit == static_cast<UnitId>(unit - plan_.units.begin());
        if (own && hook.hook == Hook::kPreForward && !hook.recompute) {
          open = Span{.begin = at, .unit = hook.unit};
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
      fail(
          fmt::format("the trace does not say which operators belong to {}, because it is no unit; "
                      "record a run in which it is one to change its checkpoint",
                      fqn));
    }
    return out;
  }

  // See [Note: Checkpoints of a recorded pass].
  void add(const Span& span) {
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
  void save_again(const Span& span, Bytes input, std::vector<Again>& again) {
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

  const plan::Workload& in_;
  const plan::ResolvedPlan& plan_;
  const std::string& source_;
  plan::Workload out_;  // operators with what they save now
  bool counted_ = false;
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
  for (const uint32_t module : before) {
    if (std::ranges::find(now, module) == now.end()) {
      out.remove(module);
    }
  }
  for (const uint32_t module : now) {
    if (std::ranges::find(before, module) == before.end()) {
      out.add(module);
    }
  }
  return out.take();
}

}  // namespace shardlens::sim
