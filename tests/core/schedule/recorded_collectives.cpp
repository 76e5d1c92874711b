#include "tests/core/schedule/recorded_collectives.h"

#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "core/model/step_workload.h"
#include "core/plan/resolve.h"
#include "core/plan/unit_sizes.h"
#include "core/schedule/collective_of.h"
#include "core/schedule/planned/planned.h"

namespace shardlens::schedule::test {
namespace {

using nlohmann::json;

std::string line(std::string_view kind, const std::string& group, Bytes before, Bytes after) {
  return fmt::format("{} {} {} -> {}", kind, group, before, after);
}

// permute_tensor() of a ring is an all-to-all of PyTorch in which each rank sends to one other.
std::string simulated_kind(const std::string& kind, const std::string& group) {
  return kind == "all_to_all" && group == "context" ? "send_recv" : kind;
}
std::string simulated_group(const std::string& group) {
  return group == "shard_context" ? "shard" : group;
}

Bytes message(const plan::UnitMessages& of, const Action& action, bool sharded) {
  switch (*collective_of(action.op)) {
    case CollectiveKind::kAllGather:
      return of.all_gather;
    case CollectiveKind::kReduceScatter:
      return of.reduce_scatter;
    default:
      return sharded ? of.all_reduce_shard : of.all_reduce_full;
  }
}

std::string line(CollectiveKind kind, const mesh::Group& group, Bytes larger) {
  const Bytes part = larger / group.size;
  return line(name_of(kind), group.name, kind == CollectiveKind::kAllGather ? part : larger,
              kind == CollectiveKind::kReduceScatter ? part : larger);
}

}  // namespace

json read_json(const std::string& path) {
  json out;
  std::ifstream(path) >> out;
  return out;
}

RecordedProgram recorded_program(const std::string& folder, const std::string& name) {
  const std::string data = SHARDLENS_TEST_DATA;
  RecordedProgram out;
  out.values = read_json(fmt::format("{}/{}/{}.json", data, folder, name));
  const std::string model = out.values["model"];
  const std::string own = fmt::format("{}/{}/{}", data, folder, model);
  json values =
      read_json(model == "decoder"             ? own + "/model.json"
                : std::filesystem::exists(own) ? own + "/config.json"
                                               : fmt::format("{}/{}/config.json", data, model));
  values.update(out.values["config"]);
  out.config = plan::parse_model_config(values.dump(), "config.json");
  int64_t world = 1;
  for (const auto& [axis, size] : out.values["plan"]["mesh"].items()) {
    world *= axis == mesh::kExpert ? 1 : size.get<int64_t>();
  }
  out.plan = plan::resolve(plan::parse_plan(out.values["plan"].dump(), "plan.json"),
                           plan::module_tree(out.config), world);
  const json& step = out.values["step"];
  out.settings = {.batch = step["batch"],
                  .seq = step["seq"].get<int64_t>(),
                  .accumulate = step["microbatches"]};
  out.settings.sync_every_microbatch = !step["accumulate"].get<bool>();
  out.settings.program = plan::Program::kTransformers;
  out.settings.expert_skew = step.value("skew", 0.0);
  out.workload = plan::step_workload(out.config, out.plan, out.settings);
  return out;
}

std::vector<std::string> recorded_collectives(const RecordedProgram& program, int64_t rank) {
  const auto bytes = [&](const json& value) {
    return value.is_array() ? value[static_cast<size_t>(rank)].get<Bytes>() : value.get<Bytes>();
  };
  std::vector<std::string> out;
  for (const json& row : program.values["collectives"]) {
    const std::string phase = row[6];
    if (phase != "optimizer" && phase != "norm") {
      out.push_back(line(simulated_kind(row[0], row[1]), simulated_group(row[1]), bytes(row[3]),
                         bytes(row[4])));
    }
  }
  return out;
}

std::vector<std::string> planned_collectives(const RecordedProgram& program,
                                             int64_t rank,
                                             bool partial) {
  const plan::ResolvedPlan& plan = program.plan;
  const PlannedStep step = planned_step(program.workload, plan, 3, program.settings);
  const std::vector<plan::UnitSize> sizes = plan::unit_sizes(plan);
  std::vector<std::string> out;
  for (const PlannedItem& item : step.order) {
    if (item.kind == PlannedItem::Kind::kCommunication) {
      const plan::Communication& each = program.workload.communications[item.index];
      const mesh::Group& group = plan.groups[each.group];
      if (!partial && each.purpose == Purpose::kReduceReplicas) {
        continue;
      }
      const int64_t position = group.position(rank);
      out.push_back(each.kind == CollectiveKind::kAllToAll
                        ? line(name_of(each.kind), group.name, sent_by(each, position),
                               received_by(each, position))
                        : line(each.kind, group, each.bytes));
    } else if (item.kind == PlannedItem::Kind::kAction) {
      const Action& action = step.actions[item.index].action;
      if (collective_of(action.op)) {
        const plan::Unit& unit = plan.units[action.unit];
        const plan::UnitMessages of = plan::unit_messages(plan, action.unit, sizes[action.unit]);
        out.push_back(line(*collective_of(action.op), plan.groups[action.group],
                           message(of, action, plan.groups[unit.gather].size > 1)));
      }
    }
  }
  return out;
}

}  // namespace shardlens::schedule::test
