#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "profiler/analysis/names.h"
#include "profiler/analysis/nesting.h"
#include "profiler/analysis/recovered_plan.h"
#include "profiler/analysis/sections.h"

namespace shardlens::analysis {
namespace {

using plan::Operator;
using plan::OperatorKind;
using trace::Category;
using trace::Event;
using trace::Trace;

OperatorKind kind_of(std::string_view name, Section section) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (section == Section::kOptimizer || section == Section::kClip) {
    return OperatorKind::kOptimizer;
  }
  if (section == Section::kLoss) {
    return OperatorKind::kLoss;
  }
  if (has("attention")) {
    return OperatorKind::kAttention;
  }
  if (has("embedding")) {
    return OperatorKind::kEmbedding;
  }
  if (has("norm")) {
    return OperatorKind::kNorm;
  }
  const bool gemm =
      name == "aten::mm" || name == "aten::addmm" || name == "aten::bmm" || name == "aten::baddbmm";
  return gemm ? OperatorKind::kGemm : OperatorKind::kElementwise;
}

plan::Phase phase_of(Section section) {
  switch (section) {
    case Section::kForward:
      return plan::Phase::kForward;
    case Section::kLoss:
      return plan::Phase::kLoss;
    case Section::kBackward:
      return plan::Phase::kBackward;
    default:
      return plan::Phase::kOptimizer;
  }
}

using Shapes = std::vector<std::vector<int64_t>>;

// "Input Dims" of one operator; tensors within lists one after the other. Numbers have empty
// shapes.
Shapes shapes_of(const nlohmann::json& args) {
  Shapes shapes;
  const auto add = [&](const nlohmann::json& dims, const auto& again) -> void {
    if (!dims.is_array()) {
      return;
    }
    if (!dims.empty() && dims.front().is_array()) {
      for (const auto& each : dims) {
        again(each, again);
      }
      return;
    }
    std::vector<int64_t> shape;
    for (const auto& size : dims) {
      shape.push_back(size.is_number_integer() ? size.get<int64_t>() : 0);
    }
    shapes.push_back(std::move(shape));
  };
  if (args.is_object() && args.contains("Input Dims") && args["Input Dims"].is_array()) {
    for (const auto& dims : args["Input Dims"]) {
      add(dims, add);
    }
  }
  return shapes;
}

int64_t numel(const std::vector<int64_t>& shape) {
  int64_t product = shape.empty() ? 0 : 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(product, size, &product)) {
      return 0;
    }
  }
  return product;
}

DType dtype_of(const nlohmann::json& args) {
  if (args.is_object() && args.contains("Input type") && args["Input type"].is_array()) {
    for (const auto& type : args["Input type"]) {
      const auto dtype = recorded_dtype(type.is_string() ? type.get<std::string>() : "");
      if (dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 ||
          dtype == DType::kF64) {
        return *dtype;
      }
    }
  }
  return DType::kF32;
}

// Sizes from shapes: of GEMMs and attention what the arithmetic is, of all else the bytes of the
// operands.
void set_sizes(Operator& op, const Shapes& shapes) {
  const Bytes element = size_of(op.dtype);
  int64_t largest = 0, all = 0;
  for (const auto& shape : shapes) {
    largest = std::max(largest, numel(shape));
    all += numel(shape);
  }
  op.read = all * element;
  op.written = largest * element;
  const size_t first = op.name == "aten::addmm" || op.name == "aten::baddbmm" ? 1 : 0;
  if (op.kind == OperatorKind::kGemm && shapes.size() >= first + 2) {
    const auto &a = shapes[first], &b = shapes[first + 1];
    if (a.size() == b.size() && a.size() >= 2 && a.back() == b[b.size() - 2]) {
      op.batch = a.size() == 3 ? a[0] : 1;
      op.m = a[a.size() - 2];
      op.k = a.back();
      op.n = b.back();
      op.flops = 2 * op.batch * op.m * op.n * op.k;
      op.written = op.batch * op.m * op.n * element;
    }
  } else if (op.kind == OperatorKind::kAttention) {
    // Queries and keys: the first two of four dimensions [B, heads, tokens, head size].
    std::vector<const std::vector<int64_t>*> four;
    for (const auto& shape : shapes) {
      if (shape.size() == 4) {
        four.push_back(&shape);
      }
    }
    const size_t query = op.phase == plan::Phase::kBackward ? 1 : 0;  // the gradient comes first
    if (four.size() >= query + 2) {
      const auto &q = *four[query], &k = *four[query + 1];
      op.batch = q[0] * q[1];
      op.m = q[2];
      op.n = k[2];
      op.k = q[3];
      op.flops = (query == 0 ? 4 : 10) * op.batch * op.m * op.n * op.k;
      op.written = numel(q) * element;
    }
  }
}

// Operators of the host that hold no other operator, as [Note: Leaf operators] has it.
std::vector<uint32_t> leaves(const Trace& trace) {
  const std::vector<uint32_t> order = by_track_and_start(trace, [&](const Event& e) {
    return e.category == Category::kCpuOp && is_operator(trace.name(e)) &&
           !is_c10d_operator(trace.name(e));
  });
  struct Open {
    uint32_t event;
    bool holds = false;
  };
  std::vector<Open> open;
  std::vector<uint32_t> out;
  const auto close = [&] {
    const Open top = open.back();
    open.pop_back();
    const bool helper = is_helper_operator(trace.name(trace.events[top.event]));
    if (!open.empty()) {
      open.back().holds = open.back().holds || top.holds || !helper;
    }
    if (!top.holds && !helper) {
      out.push_back(top.event);
    }
  };
  for (const uint32_t i : order) {
    while (!open.empty() && (trace.events[open.back().event].track != trace.events[i].track ||
                             trace.events[open.back().event].end() <= trace.events[i].start)) {
      close();
    }
    open.push_back({i});
  }
  while (!open.empty()) {
    close();
  }
  return out;
}

class WorkloadRecovery {
 public:
  WorkloadRecovery(const Trace& trace,
                   const FsdpLog& log,
                   uint32_t pass,
                   const std::vector<uint32_t>& unit_ids)
      : trace_(trace), log_(log), pass_(pass), root_(unit_ids.front()) {
    for (size_t i = 0; i < unit_ids.size(); ++i) {
      id_of_.emplace(unit_ids[i], static_cast<UnitId>(i));
    }
  }

  RecoveredWorkload run(std::vector<trace::Diagnostic>& diagnostics) {
    FsdpLog copy = log_;
    sections_ = Sections(trace_, copy);
    find_window();
    hooks();
    operators();
    find_batch();
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

  // From the pass's first hook to the end of its optimizer's step.
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

  void hook(Nanoseconds time, const Interval& when, Hook kind, UnitId unit) {
    Item item{time, when, true, {}, {}};
    item.hook.hook = kind;
    item.hook.unit = unit;
    items_.push_back(std::move(item));
  }

  void hooks() {
    hook(window_.start, {window_.start, window_.start}, Hook::kRootPreForward, 0);
    const std::optional<Nanoseconds> root_end = end_of_bare_root();
    if (root_end) {
      hook(window_.start, {window_.start, window_.start}, Hook::kPreForward, 0);
    }
    for (const FsdpEvent& e : log_.events) {
      const auto id = id_of_.find(e.unit);
      if (e.pass != pass_ || id == id_of_.end()) {
        continue;
      }
      if (e.call == FsdpCall::kPreForward) {
        hook(e.when.start, e.when, Hook::kPreForward, id->second);
      } else if (e.call == FsdpCall::kPostForward) {
        hook(e.when.end, e.when, Hook::kPostForward, id->second);
      } else if (e.call == FsdpCall::kPreBackward) {
        hook(e.when.start, e.when, Hook::kPreBackward, id->second);
      } else if (e.call == FsdpCall::kPostBackward) {
        hook(e.when.start, e.when, Hook::kGradsReady, id->second);
      }
    }
    if (root_end) {
      hook(*root_end, {*root_end, *root_end}, Hook::kPostForward, 0);
    }
    hook(backward_end_, {backward_end_, backward_end_}, Hook::kBackwardEnd, 0);
    if (optimized_) {
      hook(window_.end, {window_.end, window_.end}, Hook::kOptimizerDone, 0);
    }
  }

  // A root that owns nothing leaves no hooks of its own: its forward is around all others. The end
  // of the last of them; nullopt: the root has its own.
  [[nodiscard]] std::optional<Nanoseconds> end_of_bare_root() const {
    std::optional<Nanoseconds> last;
    for (const FsdpEvent& e : log_.events) {
      const bool forward = e.call == FsdpCall::kPreForward || e.call == FsdpCall::kPostForward;
      if (e.pass != pass_ || !forward) {
        continue;
      }
      if (e.unit == root_) {
        return std::nullopt;
      }
      if (e.call == FsdpCall::kPostForward && !e.backward) {
        last = std::max(last.value_or(e.when.end), e.when.end);
      }
    }
    return last;
  }

  void operators() {
    for (const uint32_t index : leaves(trace_)) {
      const Event& event = trace_.events[index];
      if (event.start < window_.start || event.start >= window_.end) {
        continue;
      }
      const Owner owner = sections_.at(event.track, event.start);
      if (owner.section == Section::kNone || in_hook(event)) {
        continue;
      }
      Item item{event.start, {event.start, event.end()}, false, {}, {}};
      Operator& op = item.op;
      op.name = trace_.name(event);
      op.kind = kind_of(op.name, owner.section);
      op.phase = phase_of(owner.section);
      const auto id = id_of_.find(owner.unit == kNoUnit ? root_ : owner.unit);
      op.unit = id == id_of_.end() ? 0 : id->second;
      op.module = owner.unit == kNoUnit ? "" : log_.units[owner.unit].fqn;
      const std::string_view text = trace_.args_json(event);
      const nlohmann::json args =
          text.empty() ? nlohmann::json() : nlohmann::json::parse(text, nullptr, false);
      op.dtype = dtype_of(args);
      const Shapes shapes = shapes_of(args);
      out_.unshaped += shapes.empty() ? 1 : 0;
      set_sizes(op, shapes);
      items_.push_back(std::move(item));
    }
  }

  // From the tokens that the first embedding looks up.
  void find_batch() {
    for (const Event& event : trace_.events) {
      if (event.category != Category::kCpuOp || trace_.name(event) != "aten::embedding" ||
          event.start < window_.start || event.start >= window_.end) {
        continue;
      }
      const std::string_view text = trace_.args_json(event);
      const Shapes shapes =
          shapes_of(text.empty() ? nlohmann::json() : nlohmann::json::parse(text, nullptr, false));
      if (shapes.size() >= 2 && shapes[1].size() == 2) {
        out_.workload.batch = shapes[1][0];
        out_.workload.seq = shapes[1][1];
        return;
      }
    }
  }

  // FSDP's own work: copies, casts, concatenations.
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

  // Runs of backward operators, from the first on, against runs of forward operators of the same
  // unit, from the last on.
  void find_forward() {
    std::vector<Operator>& operators = out_.workload.operators;
    std::vector<uint32_t> ends;  // last operators of the forward's runs
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
    std::unordered_map<UnitId, std::vector<uint32_t>> left;  // the last on top
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
        // The run before is through, unless it was the unit's only one.
        std::vector<uint32_t>& before = left[*running];
        if (before.size() > 1) {
          before.pop_back();
        }
      }
      running = op.unit;
      op.forward = runs.empty() ? -1 : static_cast<int32_t>(runs.back());
    }
  }

  const Trace& trace_;
  const FsdpLog& log_;
  uint32_t pass_, root_;
  std::unordered_map<uint32_t, UnitId> id_of_;
  Sections sections_;
  Interval window_;
  Nanoseconds backward_end_ = 0;
  bool optimized_ = false;
  std::vector<Item> items_;
  RecoveredWorkload out_;
};

}  // namespace

RecoveredWorkload recover_workload(const Trace& trace,
                                   const FsdpLog& log,
                                   uint32_t pass,
                                   const std::vector<uint32_t>& unit_ids,
                                   std::vector<trace::Diagnostic>& diagnostics) {
  return WorkloadRecovery(trace, log, pass, unit_ids).run(diagnostics);
}

}  // namespace shardlens::analysis
