#include "profiler/analysis/recover/recorded_program.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiler/analysis/analysis.h"
#include "profiler/analysis/timeline/timeline.h"

namespace shardlens::analysis {
namespace {

namespace fs = std::filesystem;
using schedule::Op;
using testing::HasSubstr;

// Written by shardlens.record (tests/python/recorded_training.py, case fsdp2): an embedding with a
// tied head, three blocks as units, two Gloo ranks, steps 2 and 3 of two microbatches each.
const fs::path kRun = fs::path(SHARDLENS_TEST_DATA) / "recorded_run";

trace::Run opened(const fs::path& path = kRun) {
  return open_run(std::span(&path, 1));
}

// The order check of rank 0.
Order order_of(const trace::Run& run) {
  return analyze(run).ranks.at(0).order;
}

std::vector<trace::RecordedAction>::iterator gather(trace::Run& run,
                                                    const std::string& unit,
                                                    int64_t step) {
  std::vector<trace::RecordedAction>& actions = run.traces[0].recorded_actions;
  return std::ranges::find_if(actions, [&](const trace::RecordedAction& action) {
    return action.op == Op::kAllGather && action.unit == unit && action.step == step;
  });
}

TEST(RecordedProgramTest, HasPlanModelAndSettingsOfTheProgram) {
  const trace::Run run = opened();
  EXPECT_EQ(run.plan_problem, "");
  ASSERT_TRUE(run.planned);
  EXPECT_TRUE(run.planned->recorded);
  EXPECT_EQ(run.planned->plan.units.size(), 4U);
  EXPECT_EQ(run.planned->plan.tree.parameters.size(), 14U);
  EXPECT_EQ(run.planned->plan.world_size, 2);
  EXPECT_EQ(run.planned->settings, (plan::StepSettings{.batch = 4,
                                                       .seq = 6,
                                                       .accumulate = 2,
                                                       .optimizer = plan::Optimizer::kSgd,
                                                       .momentum = 0.5}));
}

TEST(RecordedProgramTest, PlannedIssuedAndStartedOrderAgree) {
  const Order order = order_of(opened());
  // Root once, blocks twice; four reductions; two microbatches, two steps.
  EXPECT_EQ(order.planned_vs_issued.compared, (1 + 6 + 4) * 4);
  EXPECT_FALSE(order.planned_vs_issued.first_difference);
  EXPECT_EQ(order.issued_vs_started.compared, 44);
  EXPECT_FALSE(order.issued_vs_started.first_difference);
}

TEST(RecordedProgramTest, AUnitThatIsGatheredTwiceIsNamed) {
  trace::Run run = opened();
  const auto at = gather(run, "layers.1", 3);
  ASSERT_NE(at, run.traces[0].recorded_actions.end());
  run.traces[0].recorded_actions.insert(at, *at);
  const auto difference = order_of(run).planned_vs_issued.first_difference;
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->step, 3);
  ASSERT_EQ(difference->counts.size(), 1U);
  EXPECT_EQ(to_string(difference->counts[0].entry), "all_gather (layers.1)");
  EXPECT_EQ(difference->counts[0].expected, 4);
  EXPECT_EQ(difference->counts[0].found, 5);
}

TEST(RecordedProgramTest, APrefetchThatTheUnitMadeItselfIsNamed) {
  trace::Run run = opened();
  std::vector<trace::RecordedAction>& actions = run.traces[0].recorded_actions;
  const auto at = std::ranges::find_if(actions, [](const trace::RecordedAction& action) {
    return action.cause == schedule::Cause::kBackwardPrefetch && action.unit == "layers.1";
  });
  ASSERT_NE(at, actions.end());
  at->cause = schedule::Cause::kOwn;
  const auto difference = order_of(run).planned_vs_issued.first_difference;
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->expected_words(), "all_gather (layers.1) as a prefetch");
  EXPECT_EQ(difference->found_words(), "all_gather (layers.1) by the unit's own hook");
  EXPECT_TRUE(difference->counts.empty());
}

class ChangedRun : public testing::Test {
 protected:
  void SetUp() override {
    const testing::TestInfo& info = *testing::UnitTest::GetInstance()->current_test_info();
    path_ = fs::path(testing::TempDir()) / (std::string("shardlens-") + info.name());
    fs::remove_all(path_);
    fs::copy(kRun, path_);
  }
  void TearDown() override { fs::remove_all(path_); }
  void write(const char* file, const std::string& text) const {
    std::ofstream(path_ / file) << text;
  }

  fs::path path_;
};

TEST_F(ChangedRun, APlanOfOtherUnitsSaysWhichOneItLacks) {
  write("plan.json", R"({"version": 1, "units": [{"modules": "layers.0"}, {"modules": ""}]})");
  const trace::Run run = opened(path_);
  EXPECT_FALSE(run.planned);
  EXPECT_THAT(run.plan_problem, HasSubstr("the unit layers.1, but plan.json has not"));
  EXPECT_EQ(order_of(run).planned_vs_issued.compared, 0);
}

TEST_F(ChangedRun, APlanOfAnotherModelIsNotUsed) {
  write("plan.json", R"({"version": 1, "units": [{"modules": "blocks.0"}, {"modules": ""}]})");
  const trace::Run run = opened(path_);
  EXPECT_FALSE(run.planned);
  EXPECT_THAT(run.plan_problem, HasSubstr("glob 'blocks.0' matches no module"));
}

// The root has a trained parameter, but its embedding is frozen: what runs before the first block
// needs no backward. The frozen blocks are not reduced, two microbatches.
TEST_F(ChangedRun, AFrozenBeginningIsNotTrained) {
  write("plan.json", R"({"version": 1, "layout": "per_parameter",
    "frozen_parameters": ["embed.weight", "layers.0.**", "layers.1.**"],
    "units": [{"modules": "layers.*", "reshard_after_forward": true},
              {"modules": "", "reshard_after_forward": false}]})");
  const trace::Run run = opened(path_);
  ASSERT_TRUE(run.planned);
  const plan::Operator& first = run.planned->workload.operators.at(0);
  EXPECT_EQ(first.name, "aten::index_select");
  EXPECT_EQ(first.module, "embed");
  const auto difference = order_of(run).planned_vs_issued.first_difference;
  ASSERT_TRUE(difference);
  std::vector<std::string> more;
  for (const CountDifference& count : difference->counts) {
    EXPECT_EQ(count.found - count.expected, 2) << to_string(count.entry);
    more.push_back(to_string(count.entry));
  }
  EXPECT_THAT(more, testing::UnorderedElementsAre("reduce_scatter (layers.0)",
                                                  "reduce_scatter (layers.1)"));
}

TEST_F(ChangedRun, WithoutAModelOnlyTheTracesAreRead) {
  fs::remove(path_ / "model.json");
  const trace::Run run = opened(path_);
  EXPECT_FALSE(run.planned);
  EXPECT_EQ(run.traces.size(), 2U);
  EXPECT_EQ(order_of(run).issued_vs_started.compared, 44);
}

const fs::path kKinds = fs::path(SHARDLENS_TEST_DATA) / "step_kinds";

// FSDP1's ranges have no names, but the recorded actions have.
TEST(RecordedProgramTest, UnitsOfFsdp1HaveTheNamesOfThePlan) {
  const trace::Run run = opened(kKinds / "fsdp1");
  const Timeline timeline = make_timeline(run.traces.front());
  std::vector<std::string> names = timeline.units;
  std::ranges::sort(names);
  EXPECT_THAT(names, testing::ElementsAre("", "layers.0", "layers.1", "layers.2", "layers.3"));
  const Order order = order_of(run);
  EXPECT_GT(order.issued_vs_started.compared, 0);
  EXPECT_FALSE(order.issued_vs_started.first_difference);
  EXPECT_FALSE(order.planned_vs_issued.first_difference);
}

// optimizer.step(closure): four steps of two blocks, each with one activation; AdamW's operators on
// lists of tensors follow the backward.
TEST(RecordedProgramTest, ForwardAndBackwardOfAClosureBelongToTheUnits) {
  const trace::Run run = opened(kKinds / "closure");
  const trace::Trace& trace = run.traces.front();
  const Timeline timeline = make_timeline(trace);
  int forward = 0, backward = 0, optimizer = 0, unowned = 0;
  for (const trace::Event& event : trace.events) {
    const std::string_view name = trace.name(event);
    const Owner owner = timeline.sections.at(event.track, event.start);
    const bool of_block = owner.unit != kNoUnit && timeline.units[owner.unit].starts_with("layers");
    forward += name == "aten::gelu" && owner.section == Section::kForward && of_block ? 1 : 0;
    backward +=
        name == "aten::gelu_backward" && owner.section == Section::kBackward && of_block ? 1 : 0;
    if (name == "aten::_foreach_lerp_" || name == "aten::_foreach_addcdiv_") {
      (owner.section == Section::kOptimizer ? optimizer : unowned) += 1;
    }
  }
  EXPECT_EQ(forward, 4 * 2);
  EXPECT_EQ(backward, 4 * 2);
  EXPECT_EQ(optimizer, 4 * 4);
  EXPECT_EQ(unowned, 0);
}

}  // namespace
}  // namespace shardlens::analysis
