#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/plan/plan.h"
#include "core/schedule/planned/collective_totals.h"
#include "sim/scenario/scenario.h"
#include "sim/scenario/uncertainty.h"

// Runs of unusual steps, recorded by tests/tools/record_step_kinds.py: FSDP2 over Gloo, two ranks
// of which one is kept, two blocks and the root (embedding and head), four steps. The numbers of
// collectives follow from FSDP2's rules: the root is gathered once and kept until backward, a block
// is gathered for each of its forwards and backwards, each unit is reduced once a backward.
namespace shardlens::sim {
namespace {

std::filesystem::path path_of(const std::string& kind) {
  return std::filesystem::path(SHARDLENS_TEST_DATA) / "step_kinds" / kind;
}

std::shared_ptr<const RecordedRun> run_of(const std::string& kind) {
  const std::filesystem::path path = path_of(kind);
  return RecordedRun::open(std::span(&path, 1));
}

struct Kind {
  std::string name;
  int64_t steps = 4, microbatches = 1, all_gathers = 5, reduce_scatters = 3;
  std::vector<StepsLeftOut> left_out = {};
};

class RecordedKinds : public testing::TestWithParam<Kind> {};

TEST_P(RecordedKinds, StepsAreRecognized) {
  const Kind& kind = GetParam();
  const std::shared_ptr<const RecordedRun> run = run_of(kind.name);
  const Observation& seen = run->observation();
  EXPECT_FALSE(seen.one_pass);
  EXPECT_EQ(static_cast<int64_t>(seen.steps.size()), kind.steps);
  EXPECT_EQ(seen.left_out, kind.left_out);
  EXPECT_EQ(seen.settings.accumulate, kind.microbatches);
  std::map<CollectiveKind, int64_t> planned;
  for (const auto& each : schedule::collective_totals(seen.plan, seen.planned)) {
    planned[each.kind] = each.count;
  }
  EXPECT_EQ(planned[CollectiveKind::kAllGather], kind.all_gathers);
  EXPECT_EQ(planned[CollectiveKind::kReduceScatter], kind.reduce_scatters);
  // Another plan for the run: everything is gathered once.
  Scenario kept = own_scenario(run);
  for (plan::UnitEntry& unit : kept.plan.units) {
    unit.reshard_after_forward = plan::Reshard{plan::Reshard::Kind::kNo, 0};
  }
  const Prediction then = evaluate(kept);
  EXPECT_LT(then.step.duration, evaluate(own_scenario(run)).step.duration);
}

// Blocks in two forwards and their backwards: 2 · (2 + 2) gathers; with a forward without
// gradients: 2 · (2 + 1). A head that is a unit is not gathered, because its forward does not run.
// The step after an evaluation does not gather the root, which is still there.
INSTANTIATE_TEST_SUITE_P(
    StepKinds,
    RecordedKinds,
    testing::Values(
        Kind{"closure"},
        Kind{.name = "head"},
        Kind{.name = "accumulate", .microbatches = 2, .all_gathers = 10, .reduce_scatters = 6},
        Kind{.name = "two_forwards", .all_gathers = 9},
        Kind{.name = "teacher", .all_gathers = 7},
        Kind{.name = "evaluate",
             .steps = 2,
             .left_out = {{1, "an evaluation ran in them"},
                          {1, "their collectives are not those of the plan"}}},
        Kind{.name = "skipped",
             .steps = 3,
             .left_out = {{1, "the optimizer did not step in them"}}}),
    [](const auto& each) { return each.param.name; });

// The last unit's weight is used without its forward. The strategy makes it part of the root.
TEST(StepKinds, AHeadWithoutForwardCanBePartOfAnotherUnit) {
  const std::shared_ptr<const RecordedRun> run = run_of("head");
  Scenario changed = own_scenario(run);
  changed.plan = plan::strategy_plan("shard_grad_op", changed.model->tree());
  EXPECT_GT(evaluate(changed).step.duration, 0);
  changed.plan = plan::strategy_plan("full_shard", changed.model->tree());
  EXPECT_GT(evaluate(changed).step.duration, 0);
}

TEST(StepKinds, TheBaselineSaysWhatWasMeasured) {
  EXPECT_EQ(run_of("closure")->baseline().measured_text("run"), "4 steps of run");
  EXPECT_EQ(
      run_of("evaluate")->baseline().measured_text("run"),
      "2 steps of run, 2 left out: an evaluation ran in them; their collectives are not those "
      "of the plan");
}

TEST(StepKinds, TheBaselineSaysThatItIsFarOff) {
  EXPECT_EQ((Baseline{.measured = 100, .simulated = 120}.doubt_text()), "");
  EXPECT_EQ((Baseline{.measured = 100, .simulated = 80}.doubt_text()), "");
  EXPECT_NE((Baseline{.measured = 100, .simulated = 121}.doubt_text()), "");
  EXPECT_NE((Baseline{.measured = 100, .simulated = 79}.doubt_text()), "");
}

// A plan that is not that of the trace, so that no step is like it.
TEST(StepKinds, OnePassHasTheRangeOfAllStepsAsItsNoise) {
  const std::filesystem::path path = path_of("closure");
  trace::Run recorded = RecordedRun::read(std::span(&path, 1)).run();
  for (plan::Unit& unit : recorded.planned->plan.units) {
    unit.reshard_after_forward = plan::Reshard{plan::Reshard::Kind::kNo, 0};
  }
  const std::shared_ptr<const RecordedRun> run = RecordedRun::of(recorded);
  EXPECT_EQ(run->baseline().measured_text("run"),
            "one pass of run, because no step is like the plan's, 4 left out: their collectives "
            "are not those of the plan");
  Prediction now = evaluate(own_scenario(run));
  Uncertainty(run).add_to(own_scenario(run), now);
  // ProfilerStep#2 to #5 of the trace: 80.878, 23.382, 15.185 and 71.776 ms.
  EXPECT_GE(now.interval->high - now.interval->low, 80'878'279 - 15'185'032);
  EXPECT_GT(now.interval->low, 0);
}

}  // namespace
}  // namespace shardlens::sim
