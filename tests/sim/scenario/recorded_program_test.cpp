#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/json/json_reader.h"
#include "sim/calibrate/calibration.h"
#include "sim/scenario/scenario.h"
#include "tests/support/temporary_directory.h"

namespace shardlens::sim {
namespace {

using testing::HasSubstr;

// A run of shardlens.record: FSDP2 over Gloo, two ranks, two steps of two microbatches.
std::shared_ptr<const RecordedRun> recorded() {
  static const std::shared_ptr<const RecordedRun> run = [] {
    const std::filesystem::path path = std::filesystem::path(SHARDLENS_TEST_DATA) / "recorded_run";
    return RecordedRun::open(std::span(&path, 1));
  }();
  return run;
}

// The predicted step with a changed plan.
Prediction with(const std::function<void(plan::Plan&)>& change) {
  Scenario scenario = own_scenario(recorded());
  change(scenario.plan);
  return evaluate(scenario);
}

TEST(RecordedProgram, EveryStepOfEveryRankCounts) {
  const Observation& seen = recorded()->observation();
  EXPECT_EQ(seen.steps.size(), 4U);
  EXPECT_EQ(seen.settings.accumulate, 2);
  for (const ObservedStep& step : seen.steps) {
    Nanoseconds sum = step.outside + step.norm_communication + step.outside_communication;
    for (const ObservedItem& item : step.items) {
      sum += item.host + item.waited + std::max<Nanoseconds>(0, item.run);
    }
    EXPECT_EQ(sum, step.duration);  // each instant belongs to one item
  }
}

TEST(RecordedProgram, ThePlanIsTheProgramsOwnOnItsOwnModules) {
  EXPECT_EQ(recorded()->tree().parameters.size(), 14U);
  EXPECT_NE(recorded()->tree().find("layers.1.fc2"), nullptr);
  EXPECT_EQ(recorded()->observation().plan.units.size(), 4U);
}

TEST(RecordedProgram, CollectivesHideNothingWhereTheHostWaitedForThem) {
  const Calibration& machine = *recorded()->machine()->calibration();
  EXPECT_TRUE(machine.blocking[static_cast<size_t>(CollectiveKind::kAllGather)]);
  EXPECT_TRUE(machine.blocking[static_cast<size_t>(CollectiveKind::kReduceScatter)]);
  EXPECT_EQ(parse_calibration(to_json(machine), "c").blocking, machine.blocking);
  const Prediction own = with([](plan::Plan&) {});
  EXPECT_EQ(own.figures.overlap, 0);
  EXPECT_GT(own.figures.exposed_comm, 0);
  EXPECT_GT(own.figures.exposed_copy, 0);
  // A prefetch only moves the gathers.
  const Prediction prefetched = with([](plan::Plan& plan) {
    plan.forward_prefetch_lists = {{"layers.0", {"layers.1"}}, {"layers.1", {"layers.2"}}};
  });
  EXPECT_NEAR(static_cast<double>(prefetched.step.duration), static_cast<double>(own.step.duration),
              0.01 * static_cast<double>(own.step.duration));
}

// The baseline is the prediction of the run's own plan as any other plan is predicted.
TEST(RecordedRuns, TheOwnPlanHasOnePrediction) {
  const std::filesystem::path data = SHARDLENS_TEST_DATA;
  std::vector<std::filesystem::path> runs{data / "recorded_run"};
  for (const std::filesystem::path& folder : {data / "pytorch_traces", data / "../../traces"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.is_directory()) {
        runs.push_back(entry.path());
      }
    }
  }
  size_t simulated = 0;
  for (const std::filesystem::path& path : runs) {
    std::shared_ptr<const RecordedRun> run;
    try {
      run = RecordedRun::open(std::span(&path, 1));
    } catch (const Error&) {
      continue;  // other tests have the reasons
    }
    const Scenario own = own_scenario(run);
    EXPECT_EQ(evaluate(own).step.duration, run->baseline().simulated) << path;
    EXPECT_EQ(evaluate(own, {.timeline = true}).step.duration, run->baseline().simulated) << path;
    ++simulated;
  }
  EXPECT_GE(simulated, 15U);
}

TEST(RecordedProgram, ReplaysItsOwnPlan) {
  EXPECT_LT(std::abs(recorded()->baseline().error()), 0.1);
}

// Without resharding six of fourteen gathers of a step and their copies are gone.
TEST(RecordedProgram, KeptParametersAreNotGatheredAgain) {
  const Prediction own = with([](plan::Plan&) {});
  const Prediction kept = with([](plan::Plan& plan) {
    for (plan::UnitEntry& unit : plan.units) {
      unit.reshard_after_forward = plan::Reshard{plan::Reshard::Kind::kNo, 0};
    }
  });
  EXPECT_LT(kept.figures.exposed_comm, own.figures.exposed_comm);
  EXPECT_LT(kept.figures.exposed_copy, own.figures.exposed_copy);
  EXPECT_LT(kept.step.duration, own.step.duration);
}

// In a group of one rank FSDP2 copies each unit's parameters for every use and its gradients twice,
// and the host waits for its all-reduces as for its other collectives.
TEST(RecordedProgram, WithoutAShardAxisFsdp2StillCopies) {
  const Prediction own = with([](plan::Plan&) {});
  const Prediction replicated = with([](plan::Plan& plan) {
    plan.mesh.replicate = 2;
    plan.mesh.shard = 1;
  });
  const auto count = [](const Prediction& of, schedule::Op op) {
    return std::ranges::count_if(
        of.priced.planned->actions,
        [op](const schedule::PlannedAction& each) { return each.action.op == op; });
  };
  EXPECT_EQ(count(replicated, schedule::Op::kAllGather), 0);
  EXPECT_EQ(count(replicated, schedule::Op::kCopyIn), count(own, schedule::Op::kAllGather));
  EXPECT_EQ(count(replicated, schedule::Op::kAllReduce), count(own, schedule::Op::kReduceScatter));
  // Into the reduction's input, and from there into its output.
  EXPECT_EQ(count(replicated, schedule::Op::kReduceCopyIn),
            2 * count(own, schedule::Op::kReduceScatter));
  EXPECT_EQ(replicated.figures.overlap, 0);
  EXPECT_GT(replicated.figures.exposed_comm, 0);
  EXPECT_GT(replicated.figures.exposed_copy, own.figures.exposed_copy / 2);
  EXPECT_LT(replicated.step.duration, own.step.duration);
}

TEST(RecordedProgram, AUnitCannotBeDivided) {
  try {
    (void)with([](plan::Plan& plan) {
      plan.units.emplace_back();
      plan.units.back().globs = {"layers.0.fc1"};
    });
    FAIL() << "the unit was divided";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("units can be merged, but not divided"));
    EXPECT_THAT(error.what(), HasSubstr("layers.0.fc1"));
  }
}

// The optimizer's bytes at the peak of the recorded step, where run.json has these states.
Bytes optimizer_bytes(const nlohmann::json& states) {
  const test::TemporaryDirectory directory;
  const std::filesystem::path run = directory.path() / "run";
  std::filesystem::copy(std::filesystem::path(SHARDLENS_TEST_DATA) / "recorded_run", run);
  std::filesystem::permissions(run / "run.json", std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  nlohmann::json about = nlohmann::json::parse(plan::read_text_file(run / "run.json"));
  about["optimizer_states"] = states;
  std::ofstream(run / "run.json") << about;
  const Prediction own = evaluate(own_scenario(RecordedRun::open(std::span(&run, 1))));
  return own.memory.at_peak[static_cast<size_t>(MemoryCategory::kOptimizer)];
}

// The run's SGD keeps 4 bytes for an element. On rank 0 the root's 3 x 1 and 17 x 8 are 2 and 72
// elements, and each of three layers has 64 + 8 + 64 + 4. The allocator rounds to 512 bytes.
TEST(RecordedProgram, StatesAreThoseThatTheOptimizerKeeps) {
  const auto row = [](const std::vector<std::string>& names, int64_t elements, int64_t bytes) {
    return nlohmann::json{{"parameters", names}, {"elements", elements}, {"bytes", bytes}};
  };
  EXPECT_EQ(optimizer_bytes(nullptr), 512 + 3 * 1024);
  // As of a list of past directions: 100 bytes for each element of one parameter.
  EXPECT_EQ(optimizer_bytes(nlohmann::json::array({row({"layers.1.fc1.weight"}, 64, 6400)})), 6656);
  // Rank 0 has nothing of the second parameter: it keeps what the others do for an element.
  EXPECT_EQ(optimizer_bytes(nlohmann::json::array(
                {row({"embed.weight"}, 72, 72 * 64), row({"layers.0.fc1.weight"}, 0, 0)})),
            72 * 64 + 64 * 64);
  // What cannot be read changes nothing.
  for (const nlohmann::json& wrong : {nlohmann::json("all"), nlohmann::json::array({3}),
                                      nlohmann::json::array({row({"embed.weight"}, -1, 8)})}) {
    EXPECT_EQ(optimizer_bytes(wrong), 512 + 3 * 1024);
  }
}

}  // namespace
}  // namespace shardlens::sim
