// Settings that FSDP2 has from torch 2.13 and 2.15 on: orders and lifetimes that torch 2.15 was
// seen to have (tests/data/later_orders.json, tests/tools/later_orders.py).
#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/model/step_workload.h"
#include "core/plan/resolve.h"
#include "core/schedule/ledger.h"
#include "core/schedule/planned/planned.h"
#include "tests/core/schedule/orders_case.h"
#include "tests/core/schedule/planned_events.h"

namespace shardlens::schedule::test {
namespace {

using nlohmann::json;

constexpr UnitId kBlocks = 4;  // of llama-tiny and of the recorded model

json later_orders() {
  std::ifstream file(std::string(SHARDLENS_TEST_DATA) + "/later_orders.json");
  return json::parse(file)["cases"];
}

// Forwards, pre-backwards, all-gathers with their waits, reduce-scatters and frees. Post-backwards
// are left out: the accumulators of gradients announce them here, before the callback that runs
// some of PyTorch's.
std::string without_post_backwards(const std::string& events) {
  std::string out;
  for (const std::string& token : tokens_of(events)) {
    if (std::string_view("FfBbAWRS").find(token[0]) != std::string_view::npos) {
      out += (out.empty() ? "" : " ") + token;
    }
  }
  return out;
}

// Of the unit ids of the recorded model, whose embedding may be one.
std::string unit_name(UnitId unit, bool embedding) {
  return embedding && unit == 1 ? "u" : name_in_orders(unit - (embedding && unit > 1 ? 1 : 0));
}

plan::Finalization finalization_of(const json& test) {
  const std::string name = test.value("finalize", "");
  return name == "waits"     ? plan::Finalization::kWaits
         : name == "reduces" ? plan::Finalization::kReduces
                             : plan::Finalization::kAutomatic;
}

PlannedStep planned(const json& test) {
  const plan::ModelConfig config =
      plan::load_model_config(std::string(SHARDLENS_TEST_DATA) + "/llama-tiny");
  plan::Plan plan;
  plan.layout = plan::Layout::kPerParameter;
  plan.backward_finalization = finalization_of(test);
  plan.reduce_scatter_max_input_buffers = test.value("inputs", 1);
  plan.reduce_scatter_unused_params = test.value("zeros", false);
  plan.keep_unsharded_storage = test.value("keep_storage", false);
  plan.units = {{.globs = {"model.layers.*"}}, {.globs = {""}}};
  if (test.value("embedding", false)) {
    plan.units.push_back({.globs = {"model.embed_tokens"}});
  }
  const plan::ResolvedPlan resolved = plan::resolve(plan, plan::module_tree(config), 2);
  return planned_step(plan::step_workload(config, resolved, {.batch = 1, .seq = 8}), resolved,
                      /*step=*/3, test.value("microbatches", 1), !test.value("no_sync", false));
}

// The most inputs of reductions that exist at the same time.
int64_t most_inputs(const PlannedStep& step) {
  int64_t now = 0, most = 0;
  for (const PlannedAction& each : step.actions) {
    if (each.action.buffer.kind == BufferKind::kReduceInput) {
      now += each.action.op == Op::kAlloc ? 1 : each.action.op == Op::kFree ? -1 : 0;
      most = std::max(most, now);
    }
  }
  return most;
}

TEST(LaterOrdersTest, PlannedStepsAreAsRecorded) {
  const json cases = later_orders();
  for (const auto& [name, row] : cases.items()) {
    const json& test = row["case"];
    if (test.contains("unused")) {
      continue;
    }
    SCOPED_TRACE(name);
    const PlannedStep step = planned(test);
    const bool embedding = test.value("embedding", false);
    const std::string found =
        events_of(step, false, [embedding](UnitId unit) { return unit_name(unit, embedding); });
    EXPECT_EQ(without_post_backwards(found), without_post_backwards(row["events"]));
    EXPECT_EQ(most_inputs(step), row["inputs"]);
  }
}

// Raises the recorded hooks of a model of which a block has no gradients. The hooks of the final
// callback are raised for the units that have some.
PlannedStep replayed(const json& row, std::vector<UnitSpec>& specs, ScheduleOptions& options) {
  const json& test = row["case"];
  specs.resize(kBlocks + 1);
  for (UnitId unit = 0; unit < specs.size(); ++unit) {
    specs[unit].name = name_in_orders(unit);
    specs[unit].parent = unit == 0 ? kNoUnit : 0;
    specs[unit].copy_in = specs[unit].copy_out = specs[unit].reduce_copy_in = true;
  }
  options.layout = plan::Layout::kPerParameter;
  options.shard = 2;
  options.reduces_unused = test.value("zeros", false);
  Schedule schedule = std::move(Schedule::make(specs, options).value());
  PlannedStep step;
  const auto raise = [&](const HookEvent& event) {
    ActionList actions;
    const Result<void> done = schedule.on(event, actions);
    EXPECT_TRUE(done.ok()) << done.message();
    step.hooks.push_back(event);
    for (const Action& action : actions) {
      step.actions.push_back({static_cast<uint32_t>(step.actions.size() + 1), event, action});
    }
  };
  for (const std::string& token : tokens_of(row["events"])) {
    if (token == "|") {
      continue;
    }
    const UnitId unit = token[1] == 'r' ? 0 : static_cast<UnitId>(std::stoi(token.substr(1)) + 1);
    switch (token[0]) {
      case 'F':
        if (unit == 0) {
          raise({.hook = Hook::kRootPreForward});
        }
        raise({.hook = Hook::kPreForward, .unit = unit});
        break;
      case 'f':
        raise({.hook = Hook::kPostForward, .unit = unit});
        break;
      case 'B':
        raise({.hook = Hook::kPreBackward, .unit = unit});
        break;
      case 'P':
        if (unit != test["unused"].get<UnitId>() + 1) {
          raise({.hook = Hook::kGradsReady, .unit = unit});
        }
        break;
      case 'c':
        raise({.hook = Hook::kBackwardEnd});
        break;
      default:
        break;
    }
  }
  return step;
}

TEST(LaterOrdersTest, UnusedParametersAreReducedAsZeros) {
  const json cases = later_orders();
  for (const auto& [name, row] : cases.items()) {
    if (!row["case"].contains("unused")) {
      continue;
    }
    SCOPED_TRACE(name);
    std::vector<UnitSpec> specs;
    ScheduleOptions options;
    const PlannedStep step = replayed(row, specs, options);
    EXPECT_EQ(without_post_backwards(events_of(step, false)),
              without_post_backwards(row["events"]));
    EXPECT_EQ(std::ranges::count(step.actions, Op::kReduceScatter,
                                 [](const PlannedAction& each) { return each.action.op; }),
              options.reduces_unused ? kBlocks + 1 : kBlocks);
    Ledger ledger(specs, options);
    for (const PlannedAction& each : step.actions) {
      const Result<void> kept = ledger.consume(each.action);
      ASSERT_TRUE(kept.ok()) << kept.message();
    }
  }
}

}  // namespace
}  // namespace shardlens::schedule::test
