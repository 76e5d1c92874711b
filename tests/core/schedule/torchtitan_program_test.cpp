#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/model/model_config.h"
#include "core/model/step_workload.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/schedule/ledger.h"
#include "core/schedule/planned/collective_totals.h"

namespace shardlens::schedule {
namespace {

using nlohmann::json;

struct TitanProgram {
  plan::ResolvedPlan plan;
  plan::Workload workload;
};

TitanProgram titan_program(const json& row) {
  const plan::ModelConfig config = plan::parse_model_config(row["config"].dump(), "config.json");
  TitanProgram out{plan::resolve(plan::parse_plan(row["plan"].dump(), "plan.json"),
                                 plan::module_tree(config), row["world"]),
                   {}};
  plan::StepSettings settings{.batch = row["batch"], .seq = row["seq"].get<int64_t>()};
  settings.program = plan::Program::kTorchtitan03;
  settings.software.loss_chunks = row["parts"].get<int64_t>();
  out.workload = plan::step_workload(config, out.plan, settings);
  return out;
}

json titan_rows() {
  std::ifstream file(std::string(SHARDLENS_TEST_DATA) + "/torchtitan_03.json");
  return json::parse(file).at("rows");
}

std::vector<std::string> planned_by_unit(const TitanProgram& program, const PlannedStep& step) {
  std::vector<std::string> out;
  for (const PlannedCollective& each : planned_collectives(program.plan, step)) {
    out.push_back(fmt::format("{} of {}, {} bytes", name_of(each.kind),
                              program.plan.units[each.unit].fqn, each.bytes));
  }
  return out;
}

// Compared with the collectives that torchtitan 0.3 issues with torch 2.15
// (tests/tools/torchtitan_03_program.py): the unit of norm and head is gathered for the norm,
// before the parts of the loss and in backward, and its gradients are reduced in two parts.
TEST(Torchtitan03, CollectivesAreThoseOfPyTorch) {
  const json rows = titan_rows();
  for (const auto& [name, row] : rows.items()) {
    const TitanProgram program = titan_program(row);
    std::vector<std::string> expected;
    for (const json& each : row["collectives"]) {
      expected.push_back(fmt::format("{} of {}, {} bytes", each[0].get<std::string>(),
                                     each[1].get<std::string>(), each[2].get<int64_t>()));
    }
    EXPECT_EQ(planned_by_unit(program, planned_step(program.workload, program.plan)), expected)
        << name;
  }
}

// Buffers, streams and events of two steps of two microbatches, in a world with and without
// replicas.
TEST(Torchtitan03, KeepsTheInvariantsOfASchedule) {
  json row = titan_rows().begin().value();
  for (const json& mesh : {json("1x8"), json("2x4"), json("8x1")}) {
    row["plan"]["mesh"] = {{"replicate", mesh == "1x8"   ? 1
                                         : mesh == "2x4" ? 2
                                                         : 8},
                           {"shard", mesh == "1x8"   ? 8
                                     : mesh == "2x4" ? 4
                                                     : 1}};
    const TitanProgram program = titan_program(row);
    for (const bool sync : {true, false}) {
      Ledger ledger(unit_specs(program.plan), schedule_options(program.plan));
      const PlannedStep step = planned_step(program.workload, program.plan, 1, 2, sync);
      for (const PlannedAction& each : step.actions) {
        const Result<void> done = ledger.consume(each.action);
        ASSERT_TRUE(done.ok()) << mesh << ": " << done.message();
      }
      const Result<void> end = ledger.finish();
      EXPECT_TRUE(end.ok()) << mesh << ": " << end.message();
    }
  }
}

// The head in the root's unit, or in one of its own, is called like the other modules.
TEST(Torchtitan03, AHeadWithoutANormIsReducedOnce) {
  json row = titan_rows().begin().value();
  row["plan"]["units"] = {{{"modules", "model.layers.*"}}, {{"modules", ""}}};
  const TitanProgram program = titan_program(row);
  int reductions = 0;
  for (const PlannedCollective& each :
       planned_collectives(program.plan, planned_step(program.workload, program.plan))) {
    reductions += each.kind == CollectiveKind::kReduceScatter && each.unit == 0 ? 1 : 0;
  }
  EXPECT_EQ(reductions, 1);
}

// Two ranks of `tensor`: the head's input is gathered once for all parts, and its gradient reduced
// once; of each part's logits the ranks gather theirs or, with loss_parallel, reduce three numbers
// for each row.
TEST(Torchtitan03, PartsOfADividedLoss) {
  json row = titan_rows().begin().value();
  row["parts"] = 4;
  const int64_t rows = row["batch"].get<int64_t>() * row["seq"].get<int64_t>();
  const Bytes hidden = rows * row["config"]["hidden_size"].get<int64_t>() * 2;
  const Bytes logits = rows / 4 * row["config"]["vocab_size"].get<int64_t>() * 2;
  for (const bool loss_parallel : {false, true}) {
    row["plan"]["mesh"] = {{"shard", 4}, {"tensor", 2}};
    row["plan"]["loss_parallel"] = loss_parallel;
    const TitanProgram program = titan_program(row);
    std::vector<std::string> found;
    for (const plan::Communication& each : program.workload.communications) {
      if (each.module == "lm_head" || each.purpose == Purpose::kLoss) {
        found.push_back(fmt::format("{} {}", name_of(each.kind), each.bytes));
      }
    }
    std::vector<std::string> expected{fmt::format("all_gather {}", hidden)};
    for (int i = 0; i < (loss_parallel ? 12 : 4); ++i) {
      expected.push_back(loss_parallel ? fmt::format("all_reduce {}", rows / 4 * 4)
                                       : fmt::format("all_gather {}", logits));
    }
    expected.push_back(fmt::format("reduce_scatter {}", hidden));
    EXPECT_EQ(found, expected) << loss_parallel;
  }
}

// With scales for rows the ranks of `tensor` send 16 bits, as torchtitan does, and multiply their
// parts in 8; other recipes are refused, because casts are sent.
TEST(Torchtitan03, RowwiseProductsOnDividedLayers) {
  json row = titan_rows().begin().value();
  row["plan"]["mesh"] = {{"shard", 4}, {"tensor", 2}};
  const plan::ModelConfig config = plan::parse_model_config(row["config"].dump(), "config.json");
  const plan::ResolvedPlan plan = plan::resolve(plan::parse_plan(row["plan"].dump(), "plan.json"),
                                                plan::module_tree(config), row["world"]);
  plan::StepSettings settings{.batch = 2, .seq = 1024};
  settings.program = plan::Program::kTorchtitan;
  const plan::Workload plain = plan::step_workload(config, plan, settings);
  settings.software.matmul_dtype = plan::MatmulDType::kFp8Rowwise;
  const plan::Workload cast = plan::step_workload(config, plan, settings);
  const auto sent = [](const plan::Workload& of) {
    std::vector<std::string> out;
    for (const plan::Communication& each : of.communications) {
      out.push_back(fmt::format("{} {} {}", name_of(each.kind), each.module, each.bytes));
    }
    return out;
  };
  EXPECT_EQ(sent(cast), sent(plain));
  const auto in_8_bits = [](const plan::Operator& op) { return op.matmul_dtype.has_value(); };
  EXPECT_EQ(std::ranges::count_if(cast.operators, in_8_bits),
            3 * 7 * 3);  // blocks, layers, products
  settings.software.matmul_dtype = plan::MatmulDType::kFp8Tensorwise;
  EXPECT_THROW((void)plan::step_workload(config, plan, settings), InputError);
}

// One number for each weight that is gathered in 8 bits: seven layers in each of three blocks.
TEST(Torchtitan03, ScalesOfFloat8WeightsAreReducedOnce) {
  json row = titan_rows().begin().value();
  row["plan"]["mixed_precision"]["gather_dtype"] = "float8_e4m3fn";
  const plan::ModelConfig config = plan::parse_model_config(row["config"].dump(), "config.json");
  const plan::ResolvedPlan plan = plan::resolve(plan::parse_plan(row["plan"].dump(), "plan.json"),
                                                plan::module_tree(config), row["world"]);
  plan::StepSettings settings{.batch = 2, .seq = 1024};
  settings.software.matmul_dtype = plan::MatmulDType::kFp8Tensorwise;
  const plan::Workload found = plan::step_workload(config, plan, settings);
  ASSERT_EQ(found.communications.size(), 1U);
  EXPECT_EQ(found.communications[0].kind, CollectiveKind::kAllReduce);
  EXPECT_EQ(found.communications[0].bytes, 3 * 7 * 4);
  EXPECT_EQ(plan.groups[found.communications[0].group].size, 8);
}

}  // namespace
}  // namespace shardlens::schedule
