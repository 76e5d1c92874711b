#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/json/json_reader.h"
#include "core/workload/communications.h"
#include "core/workload/workload.h"

namespace shardlens::plan {
namespace {

using Names = std::vector<std::string>;
using nlohmann::ordered_json;

const Names kPhases{"forward", "loss", "backward", "optimizer", "recompute"};
const Names kKinds{"gemm", "attention", "embedding", "norm", "elementwise", "loss", "optimizer"};
const Names kGrads{"none", "some", "all", "last", "others"};
const Names kKeys{
    "version",   "batch", "seq",    "program", "software",       "units",
    "operators", "hooks", "groups", "order",   "communications", "optimizer_in_backward"};
const Names kOperatorKeys{"kind",
                          "phase",
                          "unit",
                          "name",
                          "module",
                          "batch",
                          "m",
                          "n",
                          "k",
                          "dtype",
                          "flops",
                          "read_bytes",
                          "written_bytes",
                          "saved_bytes",
                          "forward",
                          "causal",
                          "takes",
                          "frees_bytes",
                          "scratch_bytes",
                          "launch",
                          "matmul_dtype",
                          "takes_residual",
                          "sums"};
const Names kLaunches{"operator", "kernel", "first_kernel", "in_graph", "first_in_graph"};
const Names kCommunicationKeys{"kind",          "purpose", "phase",         "unit",
                               "module",        "group",   "bytes",         "forward",
                               "waited_by",     "takes",   "frees_bytes",   "saved_bytes",
                               "written_bytes", "sent_to", "received_from", "read_by_host"};
const Names kGroupKeys{"name", "ranks", "stride"};
const Names kHookKeys{"hook", "unit", "invocation", "grad_mode", "recompute", "grads"};
constexpr int64_t kMost = int64_t{1} << 31;
constexpr int64_t kMostSums = 1000;

Program read_program(const JsonNode& node) {
  Names names;
  for (int i = 0; i < kProgramCount; ++i) {
    names.emplace_back(name_of(static_cast<Program>(i)));
  }
  return static_cast<Program>(node.one_of(names));
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
  put("sums", op.sums, kDefault.sums);
  put("takes_residual", op.takes_residual, kDefault.takes_residual);
  put("launch", kLaunches[static_cast<size_t>(op.launch)], kLaunches[0]);
  if (op.matmul_dtype) {
    out["matmul_dtype"] = name_of(*op.matmul_dtype);
  }
  return out;
}

std::string item_name(const WorkloadItem& item) {
  constexpr std::string_view kFirst = "hoc";  // by kind
  return fmt::format("{}{}", kFirst[static_cast<size_t>(item.kind)], item.index);
}

ordered_json communication_json(const Communication& each, const ResolvedPlan& plan) {
  ordered_json out{{"kind", name_of(each.kind)},
                   {"purpose", name_of(each.purpose)},
                   {"phase", kPhases[static_cast<size_t>(each.phase)]},
                   {"unit", each.unit},
                   {"module", each.module},
                   {"group", plan.groups.at(each.group).name},
                   {"bytes", each.bytes}};
  if (!each.parts.empty()) {
    out[each.returns ? "received_from" : "sent_to"] = each.parts;
  }
  if (each.forward) {
    out["forward"] = item_name(*each.forward);
  }
  if (each.waited_by) {
    out["waited_by"] = item_name(*each.waited_by);
  }
  const auto put = [&out](const char* key, auto value) {
    if (value != 0) {
      out[key] = value;
    }
  };
  put("written_bytes", each.written);
  put("saved_bytes", each.saved);
  put("takes", each.takes);
  put("frees_bytes", each.frees);
  put("read_by_host", each.read_by_host);
  return out;
}

// The groups that communications use, in the plan's order.
ordered_json groups_json(const Workload& workload, const ResolvedPlan& plan) {
  ordered_json out = ordered_json::array();
  for (size_t id = 0; id < plan.groups.size(); ++id) {
    const mesh::Group& group = plan.groups[id];
    if (std::ranges::any_of(workload.communications,
                            [id](const Communication& each) { return each.group == id; })) {
      out.push_back({{"name", group.name}, {"ranks", group.size}, {"stride", group.stride}});
    }
  }
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

// The names of all enumerators, in order.
template <typename Enum>
Names names_of_all(size_t count) {
  Names out;
  for (size_t i = 0; i < count; ++i) {
    out.emplace_back(name_of(static_cast<Enum>(i)));
  }
  return out;
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
  if (const auto sums = node.find("sums")) {
    op.sums = static_cast<int32_t>(sums->integer(0, kMostSums));
  }
  if (const auto takes = node.find("takes_residual")) {
    op.takes_residual = takes->boolean();
  }
  if (const auto launch = node.find("launch")) {
    op.launch = static_cast<Launch>(launch->one_of(kLaunches));
  }
  if (const auto dtype = node.find("matmul_dtype")) {
    static const Names kDTypes = names_of_all<MatmulDType>(kMatmulDTypeCount);
    op.matmul_dtype = static_cast<MatmulDType>(dtype->one_of(kDTypes));
  }
  return op;
}

// Adds bytes of items, each at most kMostOfOperator.
void add_bytes(const JsonNode& node, std::initializer_list<Bytes> of_item, Bytes& sum) {
  for (const Bytes each : of_item) {
    sum += each;
    if (sum > kMostOfOperator) {
      node.fail(
          fmt::format("the bytes of the operators up to here are more than {}", kMostOfOperator));
    }
  }
}

enum class Refer : bool { kNo, kToEarlier };  // whether `forward` may name an operator of the list

std::vector<Operator> read_operators(const JsonNode& list,
                                     int64_t units,
                                     Refer refer,
                                     Bytes& bytes) {
  std::vector<Operator> out;
  for (const JsonNode& node : list.items("a list of operators")) {
    const auto before = refer == Refer::kToEarlier ? static_cast<int64_t>(out.size()) : 0;
    const Operator& op = out.emplace_back(read_operator(node, units, before));
    add_bytes(node, {op.read, op.written, op.saved, op.frees, op.scratch}, bytes);
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

// "o12" is operator 12, "h3" hook 3, "c0" communication 0.
WorkloadItem read_item(const JsonNode& node, const Workload& workload) {
  using Kind = WorkloadItem::Kind;
  const std::string text = node.string();
  const Kind kind = text.starts_with('h')   ? Kind::kHook
                    : text.starts_with('c') ? Kind::kCommunication
                                            : Kind::kOperator;
  const size_t count = kind == Kind::kHook            ? workload.hooks.size()
                       : kind == Kind::kCommunication ? workload.communications.size()
                                                      : workload.operators.size();
  size_t index = 0;
  bool valid =
      text.size() >= 2 && text.size() <= 11 && (kind != Kind::kOperator || text.front() == 'o');
  for (size_t i = 1; valid && i < text.size(); ++i) {
    valid = text[i] >= '0' && text[i] <= '9';
    index = index * 10 + static_cast<size_t>(text[i] - '0');
  }
  if (!valid || index >= count) {
    const std::string communication =
        workload.communications.empty() ? ""
                                        : fmt::format(" or 'c' and a communication index below {}",
                                                      workload.communications.size());
    node.fail(fmt::format(
        "expected 'h' and a hook index below {} or 'o' and an operator index below {}{}, found {}",
        workload.hooks.size(), workload.operators.size(), communication, node.shown()));
  }
  return {kind, static_cast<uint32_t>(index)};
}

// By name; `plan` gets those that it does not have.
std::map<std::string, mesh::GroupId> read_groups(const JsonNode& list, ResolvedPlan& plan) {
  std::map<std::string, mesh::GroupId> out;
  for (const JsonNode& node : list.items("a list of groups")) {
    node.expect_object("a group");
    node.allow_only(kGroupKeys);
    mesh::Group group;
    group.name = node.require("name").string();
    group.size = node.require("ranks").integer(1, plan.world_size);
    group.stride = node.require("stride").integer(1, plan.world_size);
    if (out.contains(group.name)) {
      node.fail(fmt::format("a second group '{}'", group.name));
    }
    if (plan.world_size % (group.size * group.stride) != 0) {
      node.fail(fmt::format("groups of {} ranks, {} apart, do not divide a world of {} ranks",
                            group.size, group.stride, plan.world_size));
    }
    try {
      out[group.name] = add_group(group, plan);
    } catch (const InputError& error) {
      node.fail(error.what());
    }
  }
  return out;
}

// Bytes by position in the group, of an all-to-all with unequal parts.
void read_parts(const JsonNode& node, int64_t ranks, Communication& out) {
  for (const char* key : {"sent_to", "received_from"}) {
    const auto parts = node.find(key);
    if (!parts) {
      continue;
    }
    const auto items = parts->items("a list with the bytes for each rank of the group");
    if (!out.parts.empty() || out.kind != CollectiveKind::kAllToAll ||
        static_cast<int64_t>(items.size()) != ranks) {
      parts->fail(fmt::format("expected one list of {} numbers, in an all_to_all", ranks));
    }
    for (const JsonNode& item : items) {
      out.parts.push_back(item.integer(0, kMostOfOperator / kMostRanks));
    }
    out.returns = key == std::string_view("received_from");
  }
}

// All except `forward` and `waited_by`, which may name any communication.
Communication read_communication(const JsonNode& node,
                                 int64_t units,
                                 const std::map<std::string, mesh::GroupId>& groups,
                                 const ResolvedPlan& plan) {
  node.expect_object("a communication");
  node.allow_only(kCommunicationKeys);
  static const Names kKinds = names_of_all<CollectiveKind>(kCollectiveKindCount);
  static const Names kPurposes = names_of_all<Purpose>(kPurposeCount);
  Communication out;
  Names names;
  for (const auto& [name, id] : groups) {
    names.push_back(name);
  }
  out.kind = static_cast<CollectiveKind>(node.require("kind").one_of(kKinds));
  out.purpose = static_cast<Purpose>(node.require("purpose").one_of(kPurposes));
  out.phase = static_cast<Phase>(node.require("phase").one_of(kPhases));
  out.unit = static_cast<UnitId>(node.require("unit").integer(0, units - 1));
  out.module = node.require("module").string();
  out.group = groups.at(names.at(node.require("group").one_of(names)));
  out.bytes = node.require("bytes").integer(0, kMostOfOperator);
  read_parts(node, plan.groups.at(out.group).size, out);
  out.written = amount(node, "written_bytes", 0);
  out.saved = amount(node, "saved_bytes", 0);
  out.frees = amount(node, "frees_bytes", 0);
  if (const auto takes = node.find("takes")) {
    out.takes = static_cast<uint32_t>(takes->integer(0, std::numeric_limits<uint32_t>::max()));
  }
  if (const auto host = node.find("read_by_host")) {
    out.read_by_host = host->boolean();
  }
  return out;
}

// The item that a communication differentiates or repeats.
std::optional<WorkloadItem> read_forward(const JsonNode& node,
                                         uint32_t own,
                                         const Workload& workload) {
  const auto forward = node.find("forward");
  if (!forward) {
    if (workload.communications[own].phase == Phase::kRecompute) {
      node.fail("recomputed communication needs \"forward\": the one that it repeats");
    }
    return std::nullopt;
  }
  const WorkloadItem item = read_item(*forward, workload);
  const auto in_forward = [](Phase phase) {
    return phase == Phase::kForward || phase == Phase::kLoss;
  };
  const bool communicates = item.kind == WorkloadItem::Kind::kCommunication;
  if (item.kind == WorkloadItem::Kind::kHook ||
      !in_forward(communicates ? workload.communications[item.index].phase
                               : workload.operators[item.index].phase)) {
    forward->fail(fmt::format("expected an operator or communication of forward, found {}",
                              forward->shown()));
  }
  if (workload.communications[own].phase == Phase::kRecompute && !communicates) {
    forward->fail(fmt::format("expected the communication that this one repeats, found {}",
                              forward->shown()));
  }
  return item;
}

void read_communications(
    const JsonNode& root, int64_t units, Bytes& bytes, Workload& out, ResolvedPlan& plan) {
  const auto list = root.find("communications");
  if (!list) {
    return;
  }
  const std::map<std::string, mesh::GroupId> groups = read_groups(root.require("groups"), plan);
  const auto nodes = list->items("a list of communications");
  for (const JsonNode& node : nodes) {
    const Communication& each =
        out.communications.emplace_back(read_communication(node, units, groups, plan));
    add_bytes(node, {each.bytes, each.written, each.saved, each.frees}, bytes);
  }
  uint32_t index = 0;
  for (const JsonNode& node : nodes) {
    out.communications[index].forward = read_forward(node, index, out);
    if (const auto waited_by = node.find("waited_by")) {
      out.communications[index].waited_by = read_item(*waited_by, out);
    }
    ++index;
  }
}

// Whether each communication is in the order before the item that waits for it.
void check_waits(const JsonNode& root, const Workload& workload) {
  if (workload.communications.empty()) {
    return;
  }
  std::array<std::vector<size_t>, 3> positions;  // by kind and index; 0: none
  positions[0].resize(workload.hooks.size());
  positions[1].resize(workload.operators.size());
  positions[2].resize(workload.communications.size());
  const auto position = [&](const WorkloadItem& item) -> size_t& {
    return positions[static_cast<size_t>(item.kind)][item.index];
  };
  for (size_t i = 0; i < workload.order.size(); ++i) {
    position(workload.order[i]) = i + 1;
  }
  uint32_t index = 0;
  for (const JsonNode& node : root.require("communications").items("a list of communications")) {
    const std::optional<WorkloadItem>& waited_by = workload.communications[index].waited_by;
    const size_t own = position({WorkloadItem::Kind::kCommunication, index});
    if (waited_by && position(*waited_by) <= own) {
      const JsonNode at = node.require("waited_by");
      at.fail(fmt::format("expected an item that comes later in the order than c{}, found {}",
                          index, at.shown()));
    }
    ++index;
  }
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
    order.push_back(item_name(item));
  }
  const auto communication = [&plan](const Communication& each) {
    return communication_json(each, plan);
  };
  return fmt::format(
      "{{\n  \"version\": 1,\n  \"batch\": {},\n  \"seq\": {},\n{}{}  \"units\": {},\n  "
      "\"operators\": "
      "{},\n  \"hooks\": {},\n{}"
      "  \"order\": {}{}\n}}\n",
      workload.batch, workload.seq,
      workload.program == Program::kEngine
          ? ""
          : fmt::format("  \"program\": \"{}\",\n", name_of(workload.program)),
      workload.software == Software{}
          ? ""
          : fmt::format("  \"software\": {},\n", software_json(workload.software).dump()),
      units.dump(), list(workload.operators, operator_json), list(workload.hooks, hook_json),
      workload.communications.empty()
          ? ""
          : fmt::format("  \"groups\": {},\n  \"communications\": {},\n",
                        groups_json(workload, plan).dump(),
                        list(workload.communications, communication)),
      order.dump(),
      workload.in_backward.empty()
          ? ""
          : ",\n  \"optimizer_in_backward\": " + list(workload.in_backward, operator_json));
}

Workload parse_workload(std::string_view json, const std::string& source, ResolvedPlan& plan) {
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
  if (const auto software = root.find("software")) {
    out.software = software_of(*software);
  }
  const auto units =
      static_cast<int64_t>(root.require("units").items("a list of unit FQNs").size());
  Bytes bytes = 0;
  out.operators = read_operators(root.require("operators"), units, Refer::kToEarlier, bytes);
  for (const JsonNode& node : root.require("hooks").items("a list of hook events")) {
    out.hooks.push_back(read_hook(node, units));
  }
  read_communications(root, units, bytes, out, plan);
  for (const JsonNode& node : root.require("order").items("a list of 'h…' and 'o…'")) {
    out.order.push_back(read_item(node, out));
  }
  check_waits(root, out);
  if (const auto list = root.find("optimizer_in_backward")) {
    Bytes of_updates = 0;
    out.in_backward = read_operators(*list, units, Refer::kNo, of_updates);
  }
  return out;
}

}  // namespace shardlens::plan
