#include "profiler/analysis/recover/recorded_operators.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/json/json_values.h"
#include "profiler/analysis/events/names.h"
#include "profiler/analysis/events/nesting.h"
#include "profiler/analysis/fsdp_log/ddp_log.h"
#include "profiler/analysis/fsdp_log/fsdp_log.h"

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

using Shapes = std::vector<std::vector<int64_t>>;

// "Input Dims" of one operator, with lists of tensors flattened. Numbers have empty shapes.
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
      shape.push_back(plan::integer_of(size).value_or(0));
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

// 0 if it is more than any tensor has: the file is damaged or made up.
int64_t product_of(const std::vector<int64_t>& shape) {
  constexpr int64_t kMostElements = int64_t{1} << 48;
  int64_t product = shape.empty() ? 0 : 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(product, size, &product)) {
      return 0;
    }
  }
  return product <= kMostElements ? product : 0;
}

// Sets the dimensions, unless they are more than any operator has.
void set_dimensions(Operator& op, int64_t batch, int64_t m, int64_t n, int64_t k) {
  Operator sized = op;
  sized.batch = batch;
  sized.m = m;
  sized.n = n;
  sized.k = k;
  if (plan::dimensions_fit(sized)) {
    op = std::move(sized);
  }
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

// Sets sizes from shapes: dimensions and FLOPs for GEMMs and attention, and for all operators the
// bytes of the operands.
void set_sizes(Operator& op, const Shapes& shapes) {
  const Bytes element = size_of(op.dtype);
  int64_t largest = 0, all = 0;
  for (const auto& shape : shapes) {
    largest = std::max(largest, product_of(shape));
    all = std::min(all + product_of(shape), plan::kMostOfOperator / element);
  }
  op.read = all * element;
  op.written = largest * element;
  const size_t first = op.name == "aten::addmm" || op.name == "aten::baddbmm" ? 1 : 0;
  if (op.kind == OperatorKind::kGemm && shapes.size() >= first + 2) {
    const auto &a = shapes[first], &b = shapes[first + 1];
    if (a.size() == b.size() && a.size() >= 2 && a.back() == b[b.size() - 2]) {
      set_dimensions(op, a.size() == 3 ? a[0] : 1, a[a.size() - 2], b.back(), a.back());
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
    const size_t query = plan::is_attention_backward(op) ? 1 : 0;  // the gradient comes first
    if (four.size() >= query + 2) {
      const auto &q = *four[query], &k = *four[query + 1];
      set_dimensions(op, product_of({q[0], q[1]}), q[2], k[2], q[3]);
      op.flops = (query == 0 ? 4 : 10) * op.batch * op.m * op.n * op.k;
      op.written = product_of(q) * element;
    }
  }
}

nlohmann::json args_of(const Trace& trace, const Event& event) {
  const std::string_view text = trace.args_json(event);
  return text.empty() ? nlohmann::json() : nlohmann::json::parse(text, nullptr, false);
}

}  // namespace

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

std::vector<uint32_t> leaf_operators(const Trace& trace) {
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

std::vector<bool> recomputed_operators(const Trace& trace, const Sections& sections) {
  const std::vector<uint32_t> order = by_track_and_start(trace, [&](const Event& e) {
    return e.category == Category::kCpuOp && is_operator(trace.name(e));
  });
  std::vector<bool> out(trace.events.size(), false);
  uint32_t track = 0;
  Nanoseconds end = std::numeric_limits<Nanoseconds>::min();  // of the last one that is numbered
  for (const uint32_t i : order) {
    const Event& event = trace.events[i];
    if (event.track != track) {
      track = event.track;
      end = std::numeric_limits<Nanoseconds>::min();
    }
    if (event.start >= end && sections.at(event.track, event.start).section == Section::kBackward &&
        sequence_of(trace, event) >= 0) {
      end = event.end();
    }
    out[i] = event.start < end;
  }
  return out;
}

TracedOperator recorded_operator(const Trace& trace, const Event& event, Section section) {
  TracedOperator out;
  Operator& op = out.op;
  op.name = trace.name(event);
  op.kind = kind_of(op.name, section);
  op.phase = phase_of(section);
  const nlohmann::json args = args_of(trace, event);
  op.dtype = dtype_of(args);
  const Shapes shapes = shapes_of(args);
  out.shaped = !shapes.empty();
  set_sizes(op, shapes);
  return out;
}

void find_batch(const Trace& trace, const Interval& window, plan::Workload& workload) {
  for (const Event& event : trace.events) {
    if (event.category != Category::kCpuOp || trace.name(event) != "aten::embedding" ||
        event.start < window.start || event.start >= window.end) {
      continue;
    }
    const Shapes shapes = shapes_of(args_of(trace, event));
    if (shapes.size() >= 2 && shapes[1].size() == 2) {
      workload.batch = shapes[1][0];
      workload.seq = shapes[1][1];
      return;
    }
  }
}

}  // namespace shardlens::analysis
