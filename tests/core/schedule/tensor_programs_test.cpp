#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/model/step_workload.h"
#include "core/plan/resolve.h"
#include "core/plan/unit_sizes.h"
#include "core/schedule/collective_of.h"
#include "core/schedule/planned/planned.h"
#include "tests/support/case_name.h"

namespace shardlens::schedule {
namespace {

using nlohmann::json;

const std::string kData = SHARDLENS_TEST_DATA;

json read_json(const std::string& path) {
  json out;
  std::ifstream(path) >> out;
  return out;
}

std::string line(std::string_view kind, const std::string& group, Bytes bytes) {
  return fmt::format("{} {} {}", kind, group, bytes);
}

// permute_tensor() is an all-to-all of PyTorch in which each rank sends to one other.
std::string simulated_kind(const std::string& kind) {
  return kind == "all_to_all" ? "send_recv" : kind;
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

// The collectives of a planned step, in the order in which the host issues them: those of the
// units, and those of the program. `partial`: with the sums of partial gradients.
std::vector<std::string> planned_collectives(const plan::Workload& workload,
                                             const plan::ResolvedPlan& plan,
                                             const plan::StepSettings& settings,
                                             bool partial) {
  const PlannedStep step = planned_step(workload, plan, 3, settings);
  const std::vector<plan::UnitSize> sizes = plan::unit_sizes(plan);
  std::vector<std::string> out;
  for (const PlannedItem& item : step.order) {
    if (item.kind == PlannedItem::Kind::kCommunication) {
      const plan::Communication& each = workload.communications[item.index];
      if (partial || each.purpose != Purpose::kReduceReplicas) {
        out.push_back(line(name_of(each.kind), plan.groups[each.group].name, each.bytes));
      }
    } else if (item.kind == PlannedItem::Kind::kAction) {
      const Action& action = step.actions[item.index].action;
      if (collective_of(action.op) && plan.groups[action.group].size > 1) {
        const plan::UnitMessages of = plan::unit_messages(plan, action.unit, sizes[action.unit]);
        out.push_back(line(name_of(*collective_of(action.op)), plan.groups[action.group].name,
                           message(of, action, plan.shards() > 1)));
      }
    }
  }
  return out;
}

// Compared with the collectives that PyTorch's parallelize_module and fully_shard issued over Gloo
// (tests/tools/tensor_programs.py). The optimizer's are not part of a workload. Without fully_shard
// it is the optimizer that sums partial gradients.
class TensorProgramsTest : public testing::TestWithParam<std::string> {};

TEST_P(TensorProgramsTest, CollectivesAreThoseOfPyTorch) {
  const json program = read_json(kData + "/tensor/" + GetParam() + ".json");
  const std::string model = program["model"];
  json values = read_json(kData + "/" + model + "/config.json");
  values.update(program["config"]);
  const plan::ModelConfig config = plan::parse_model_config(values.dump(), "config.json");
  const plan::Plan given = plan::parse_plan(program["plan"].dump(), "plan.json");
  int64_t world = 1;
  for (const auto& [axis, size] : program["plan"]["mesh"].items()) {
    world *= size.get<int64_t>();
  }
  const plan::ResolvedPlan plan = plan::resolve(given, plan::module_tree(config), world);
  const json& step = program["step"];
  plan::StepSettings settings{.batch = step["batch"],
                              .seq = step["seq"].get<int64_t>(),
                              .accumulate = step["microbatches"]};
  settings.sync_every_microbatch = !step["accumulate"].get<bool>();
  settings.program = plan::Program::kTransformers;
  const bool sums_in_backward = program.value("fully_shard", true);
  const plan::Workload workload = plan::step_workload(config, plan, settings);
  std::vector<std::string> expected;
  for (const json& row : program["collectives"]) {
    const std::string phase = row[6];
    if (phase != "optimizer" && phase != "norm") {
      expected.push_back(line(simulated_kind(row[0]), simulated_group(row[1]),
                              std::max(row[3].get<Bytes>(), row[4].get<Bytes>())));
    }
  }
  ASSERT_FALSE(expected.empty());
  EXPECT_EQ(planned_collectives(workload, plan, settings, sums_in_backward), expected);
}

// All files but those of models and sizes that are not divided yet, and those that gather keys and
// values themselves instead of with context_parallel().
std::vector<std::string> programs() {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(kData + "/tensor")) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() != ".json") {
      continue;
    }
    const json program = read_json(entry.path().string());
    const bool by_hand = program.contains("gather") && program["gather"] != "ring" &&
                         program["gather"] != "all_gather";
    if (!name.starts_with("decoder") && !name.ends_with("uneven") && !by_hand) {
      out.push_back(name);
    }
  }
  std::ranges::sort(out);
  return out;
}

INSTANTIATE_TEST_SUITE_P(PyTorch,
                         TensorProgramsTest,
                         testing::ValuesIn(programs()),
                         [](const auto& info) { return shardlens::test::case_name(info.param); });

}  // namespace
}  // namespace shardlens::schedule
