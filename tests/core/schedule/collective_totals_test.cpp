// Counts and bytes of a step, compared with PyTorch (tests/data/parity) and worked out by hand.
#include "core/schedule/planned/collective_totals.h"

#include <fstream>
#include <map>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/model/step_workload.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/tree/module_tree.h"

namespace shardlens::schedule::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;

const std::string kData = SHARDLENS_TEST_DATA;

struct Microbatches {
  int count = 1;
  bool sync_every = true;
};

std::vector<CollectiveTotal> planned(const std::string& keys, int world, Microbatches run = {}) {
  const plan::ModelConfig config = plan::load_model_config(kData + "/llama-tiny");
  const plan::ResolvedPlan plan =
      plan::resolve(plan::parse_plan(R"({"version": 1)" + keys + "}", "plan.json"),
                    plan::module_tree(config), world);
  const PlannedStep step = planned_step(plan::step_workload(config, plan, {.batch = 1, .seq = 8}),
                                        plan, 3, run.count, run.sync_every);
  return collective_totals(plan, step);
}

// Totals of llama-tiny's last step: kind → count, bytes.
using Totals = std::map<std::string, std::pair<int64_t, Bytes>>;
Totals recorded(const std::string& row, int world) {
  std::ifstream file(kData + "/parity/" + row + ".json");
  const json run = json::parse(file).at("llama-tiny").at(std::to_string(world));
  Totals out;
  for (const json& each : run.at("sequences").at(run.at("steps").back().get<size_t>())) {
    auto& [count, bytes] = out[each[0]];
    ++count;
    bytes += each[2].get<Bytes>() * (each[1] == "fp32" ? 4 : 2);
  }
  return out;
}

TEST(CollectiveTotalsTest, AreThoseOfPyTorch) {
  const std::string units = R"(, "units": [{"modules": "model.layers.*"}, {"modules": ""}])";
  const std::string fsdp1 = R"(, "dialect": "fsdp1")";
  const std::string fsdp2 = R"(, "layout": "per_parameter")";
  const std::string bf16 =
      R"(, "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"})";
  const Microbatches sync{3, true}, no_sync{3, false};
  struct Case {
    std::string row, plan;
    int world = 3;
    Microbatches run = {};
  };
  for (const Case& c : {
           Case{"fsdp1", fsdp1 + units},
           Case{"fsdp1-accumulate", fsdp1 + units, 3, sync},
           Case{"fsdp1-no-sync", fsdp1 + units, 3, no_sync},
           Case{"fsdp1-no-shard-no-sync", fsdp1 + units + R"(, "mesh": {"replicate": 3})", 3,
                no_sync},
           Case{"fsdp2-accumulate", fsdp2 + units, 3, sync},
           Case{"fsdp2-no-sync", fsdp2 + units, 3, no_sync},
           Case{"fsdp2-bf16-no-sync", fsdp2 + units + bf16, 3, no_sync},
           Case{"fsdp2-whole-between", fsdp2 + units + R"(, "reshard_after_backward": false)", 3,
                no_sync},
           Case{"fsdp2-hybrid-accumulate", fsdp2 + units + R"(, "mesh": {"replicate": 2})", 4,
                sync},
           Case{"ddp-no-sync", R"(, "units": [{"modules": "", "api": "replicate"}])", 3, no_sync},
       }) {
    Totals found;
    for (const CollectiveTotal& total : planned(c.plan, c.world, c.run)) {
      found[std::string(name_of(total.kind))] = {total.count, total.bytes};
    }
    EXPECT_EQ(found, recorded(c.row, c.world)) << c.row;
  }
}

// Blocks of 45 440 parameters, 32 832 in the root. Backward gathers the blocks again; sub-meshes of
// two gather as many bytes as all four ranks.
TEST(CollectiveTotalsTest, SubMeshesGatherWholeUnits) {
  constexpr Bytes kBlocks = 4L * 45440 * 4, kRoot = 32832L * 4;
  EXPECT_THAT(planned(R"(, "reshard_after_forward": 2)", 4),
              ElementsAre(CollectiveTotal{CollectiveKind::kAllGather, 10, 2 * (kBlocks + kRoot)},
                          CollectiveTotal{CollectiveKind::kReduceScatter, 5, kBlocks + kRoot}));
  EXPECT_THAT(planned("", 1), ElementsAre());
}

}  // namespace
}  // namespace shardlens::schedule::test
