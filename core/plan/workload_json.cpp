#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/json_reader.h"
#include "core/plan/workload.h"

namespace shardlens::plan {
namespace {

using Names = std::vector<std::string>;
using nlohmann::ordered_json;

const Names kPhases{"forward", "loss", "backward", "optimizer", "recompute"};
const Names kKinds{"gemm", "attention", "embedding", "norm", "elementwise", "loss", "optimizer"};
const Names kGrads{"none", "some", "all"};
const Names kKeys{"version", "batch", "seq",
                  "program", "units", "operators",
                  "hooks",   "order", "optimizer_in_backward"};
constexpr Program kPrograms[] = {Program::kEngine, Program::kEngineOnCpu, Program::kEngineOnGpu,
                                 Program::kTransformers, Program::kTorchtitan};
const Names kOperatorKeys{
    "kind",    "phase",  "unit",  "name",        "module",       "batch",         "m",
    "n",       "k",      "dtype", "flops",       "read_bytes",   "written_bytes", "saved_bytes",
    "forward", "causal", "takes", "frees_bytes", "scratch_bytes"};
const Names kHookKeys{"hook", "unit", "invocation", "grad_mode", "recompute", "grads"};
constexpr int64_t kMost = int64_t{1} << 31;

Program read_program(const JsonNode& node) {
  Names names;
  for (const Program program : kPrograms) {
    names.emplace_back(name_of(program));
  }
  return kPrograms[node.one_of(names)];
}

// Omits keys with default values: most operators are not GEMMs, and most hooks have only defaults.
ordered_json operator_json(const Operator& op) {
  static const Operator kDefault;
  ordered_json out{{"kind", kKinds[static_cast<size_t>(op.kind)]},
                   {"phase", kPhases[static_cast<size_t>(op.phase)]},
                   {"unit", op.unit},
                   {"name", op.name},
                   {"module", op.module}};
  const auto put = [&out](const char* key, auto value, auto fallback) {
    if (value != fallback) {
      out[key] = value;
    }
  };
  put("batch", op.batch, kDefault.batch);
  put("m", op.m, kDefault.m);
  put("n", op.n, kDefault.n);
  put("k", op.k, kDefault.k);
  out["dtype"] = plan_name(op.dtype);
  put("flops", op.flops, kDefault.flops);
  put("read_bytes", op.read, kDefault.read);
  put("written_bytes", op.written, kDefault.written);
  put("saved_bytes", op.saved, kDefault.saved);
  put("forward", op.forward, kDefault.forward);
  put("takes", op.takes, kDefault.takes);
  put("frees_bytes", op.frees, kDefault.frees);
  put("scratch_bytes", op.scratch, kDefault.scratch);
  put("causal", op.causal, kDefault.causal);
  return out;
}

ordered_json hook_json(const HookEvent& event) {
  static const HookEvent kDefault;
  ordered_json out{{"hook", name_of(event.hook)}, {"unit", event.unit}};
  if (event.invocation != kDefault.invocation) {
    out["invocation"] = event.invocation;
  }
  if (event.grad_mode != kDefault.grad_mode) {
    out["grad_mode"] = event.grad_mode;
  }
  if (event.recompute != kDefault.recompute) {
    out["recompute"] = event.recompute;
  }
  if (event.grads != kDefault.grads) {
    out["grads"] = kGrads[static_cast<size_t>(event.grads)];
  }
  return out;
}

int64_t amount(const JsonNode& node, std::string_view key, int64_t fallback) {
  const auto found = node.find(key);
  return found ? found->integer(0, kMostOfOperator) : fallback;
}

Operator read_operator(const JsonNode& node, int64_t units, int64_t before) {
  node.expect_object("an operator");
  node.allow_only(kOperatorKeys);
  Operator op;
  op.kind = static_cast<OperatorKind>(node.require("kind").one_of(kKinds));
  op.phase = static_cast<Phase>(node.require("phase").one_of(kPhases));
  op.unit = static_cast<UnitId>(node.require("unit").integer(0, units - 1));
  op.name = node.require("name").string();
  op.module = node.require("module").string();
  op.batch = amount(node, "batch", op.batch);
  op.m = amount(node, "m", op.m);
  op.n = amount(node, "n", op.n);
  op.k = amount(node, "k", op.k);
  if (!dimensions_fit(op)) {
    node.fail(fmt::format("batch x m x n x k is more than {}", kMostWork));
  }
  const JsonNode dtype = node.require("dtype");
  const auto parsed = parse_dtype(dtype.string());
  if (!parsed) {
    dtype.fail(fmt::format("expected a dtype like 'fp32' or 'bf16', found {}", dtype.shown()));
  }
  op.dtype = *parsed;
  op.flops = amount(node, "flops", op.flops);
  op.read = amount(node, "read_bytes", op.read);
  op.written = amount(node, "written_bytes", op.written);
  op.saved = amount(node, "saved_bytes", op.saved);
  op.frees = amount(node, "frees_bytes", op.frees);
  op.scratch = amount(node, "scratch_bytes", op.scratch);
  if (const auto forward = node.find("forward")) {
    op.forward = static_cast<int32_t>(forward->integer(-1, before - 1));
  }
  if (const auto takes = node.find("takes")) {
    op.takes = static_cast<uint32_t>(takes->integer(0, std::numeric_limits<uint32_t>::max()));
  }
  if (const auto causal = node.find("causal")) {
    op.causal = causal->boolean();
  }
  return op;
}

enum class Refer : bool { kNo, kToEarlier };  // whether `forward` may name an operator of the list

std::vector<Operator> read_operators(const JsonNode& list, int64_t units, Refer refer) {
  std::vector<Operator> out;
  Bytes bytes = 0;
  for (const JsonNode& node : list.items("a list of operators")) {
    const auto before = refer == Refer::kToEarlier ? static_cast<int64_t>(out.size()) : 0;
    const Operator& op = out.emplace_back(read_operator(node, units, before));
    for (const Bytes each : {op.read, op.written, op.saved, op.frees, op.scratch}) {
      bytes += each;  // each is at most kMostOfOperator
      if (bytes > kMostOfOperator) {
        node.fail(
            fmt::format("the bytes of the operators up to here are more than {}", kMostOfOperator));
      }
    }
  }
  return out;
}

HookEvent read_hook(const JsonNode& node, int64_t units) {
  node.expect_object("a hook event");
  node.allow_only(kHookKeys);
  HookEvent event;
  const JsonNode hook = node.require("hook");
  const auto parsed = parse_hook(hook.string());
  if (!parsed) {
    Names names;
    for (int i = 0; i < kHookCount; ++i) {
      names.emplace_back(name_of(static_cast<Hook>(i)));
    }
    (void)hook.one_of(names);
  }
  event.hook = *parsed;
  event.unit = static_cast<UnitId>(node.require("unit").integer(0, units - 1));
  event.invocation = static_cast<uint32_t>(amount(node, "invocation", 0));
  if (const auto flag = node.find("grad_mode")) {
    event.grad_mode = flag->boolean();
  }
  if (const auto flag = node.find("recompute")) {
    event.recompute = flag->boolean();
  }
  if (const auto grads = node.find("grads")) {
    event.grads = static_cast<Grads>(grads->one_of(kGrads));
  }
  return event;
}

// "o12" is operator 12, "h3" hook 3.
WorkloadItem read_item(const JsonNode& node, const Workload& workload) {
  const std::string text = node.string();
  const bool is_hook = text.starts_with('h');
  const size_t count = is_hook ? workload.hooks.size() : workload.operators.size();
  size_t index = 0;
  bool valid = text.size() >= 2 && text.size() <= 11 && (is_hook || text.front() == 'o');
  for (size_t i = 1; valid && i < text.size(); ++i) {
    valid = text[i] >= '0' && text[i] <= '9';
    index = index * 10 + static_cast<size_t>(text[i] - '0');
  }
  if (!valid || index >= count) {
    node.fail(fmt::format(
        "expected 'h' and a hook index below {} or 'o' and an operator index below {}, found {}",
        workload.hooks.size(), workload.operators.size(), node.shown()));
  }
  return {is_hook ? WorkloadItem::Kind::kHook : WorkloadItem::Kind::kOperator,
          static_cast<uint32_t>(index)};
}

}  // namespace

std::string to_json(const Workload& workload, const ResolvedPlan& plan) {
  // One entry per line, which is easy to read and to diff.
  const auto list = [](const auto& items, const auto& convert) {
    std::string out = "[";
    for (const auto& item : items) {
      out += (out.size() > 1 ? ",\n    " : "\n    ") + convert(item).dump();
    }
    return out + "\n  ]";
  };
  ordered_json units = ordered_json::array();
  for (const Unit& unit : plan.units) {
    units.push_back(unit.fqn);
  }
  ordered_json order = ordered_json::array();
  for (const WorkloadItem& item : workload.order) {
    order.push_back(
        fmt::format("{}{}", item.kind == WorkloadItem::Kind::kHook ? 'h' : 'o', item.index));
  }
  return fmt::format(
      "{{\n  \"version\": 1,\n  \"batch\": {},\n  \"seq\": {},\n{}  \"units\": {},\n  "
      "\"operators\": "
      "{},\n  \"hooks\": {},\n"
      "  \"order\": {}{}\n}}\n",
      workload.batch, workload.seq,
      workload.program == Program::kEngine
          ? ""
          : fmt::format("  \"program\": \"{}\",\n", name_of(workload.program)),
      units.dump(), list(workload.operators, operator_json), list(workload.hooks, hook_json),
      order.dump(),
      workload.in_backward.empty()
          ? ""
          : ",\n  \"optimizer_in_backward\": " + list(workload.in_backward, operator_json));
}

Workload parse_workload(std::string_view json, const std::string& source) {
  const nlohmann::json document = parse_json(json, source);
  const JsonNode root(document, source);
  root.expect_object("an object with a workload");
  root.allow_only(kKeys);
  const JsonNode version = root.require("version");
  if (!version.json().is_number_integer() || version.json() != 1) {
    version.fail(fmt::format("expected 1, the only supported version, found {}", version.shown()));
  }
  Workload out;
  out.batch = root.require("batch").integer(0, kMost);
  out.seq = root.require("seq").integer(0, kMost);
  if (const auto program = root.find("program")) {
    out.program = read_program(*program);
  }
  const auto units =
      static_cast<int64_t>(root.require("units").items("a list of unit FQNs").size());
  out.operators = read_operators(root.require("operators"), units, Refer::kToEarlier);
  for (const JsonNode& node : root.require("hooks").items("a list of hook events")) {
    out.hooks.push_back(read_hook(node, units));
  }
  for (const JsonNode& node : root.require("order").items("a list of 'h…' and 'o…'")) {
    out.order.push_back(read_item(node, out));
  }
  if (const auto list = root.find("optimizer_in_backward")) {
    out.in_backward = read_operators(*list, units, Refer::kNo);
  }
  return out;
}

}  // namespace shardlens::plan
