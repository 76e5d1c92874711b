#include "sim/advise/advise.h"

#include <cstdlib>
#include <filesystem>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/advise/advice_json.h"

namespace shardlens::sim {
namespace {

// A run that was simulated, so that what a change does is known exactly.
class SimulatedRun {
 public:
  explicit SimulatedRun(const char* strategy, int64_t forward_prefetch = 0) {
    scenario_.model = std::make_shared<const ScenarioModel>(plan::parse_model_config(
        R"({"model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
            "num_hidden_layers": 6, "num_attention_heads": 16, "vocab_size": 32000,
            "max_position_embeddings": 2048})",
        "test"));
    scenario_.plan = plan::strategy_plan(strategy, scenario_.model->tree());
    scenario_.plan.forward_prefetch = forward_prefetch;
    scenario_.step = {.batch = 1, .seq = 512};
    scenario_.machine = std::make_shared<const TargetMachine>(load_hardware("4xPCIe"));
    scenario_.world_size = 4;
    trace::Run run = predicted_run(evaluate(scenario_, {.timeline = true}));
    recorded_ = RecordedRun::of(run);
    analysis_ = analysis::analyze(run);
  }

  [[nodiscard]] Advice advice(const AdviseOptions& options = {}) const {
    return advise(recorded_, analysis_, options);
  }
  // The change of the step, on the machine that the run was simulated on.
  [[nodiscard]] Nanoseconds truth(const AdvisedChange& change) const {
    return changed(change).step.duration - evaluate(scenario_).step.duration;
  }
  // The model with the change, on that machine.
  [[nodiscard]] Prediction changed(const AdvisedChange& change) const {
    Scenario changed = scenario_;
    changed.plan = change.plan;
    changed.step.batch = change.step.batch;
    changed.step.accumulate = change.step.accumulate;
    return evaluate(changed);
  }

 private:
  Scenario scenario_;
  std::shared_ptr<const RecordedRun> recorded_;
  analysis::Analysis analysis_;
};

TEST(Advise, ListsOnlyCertainGainsTheLargestFirst) {
  const Advice advice = SimulatedRun("full_shard").advice({.top = 20});
  ASSERT_FALSE(advice.changes.empty());
  for (size_t i = 0; i < advice.changes.size(); ++i) {
    const AdvisedChange& each = advice.changes[i];
    EXPECT_LT(each.interval.high, 0) << each.title;
    EXPECT_LE(each.interval.low, each.change);
    EXPECT_TRUE(each.fits);
    EXPECT_EQ(each.duration - each.change, advice.baseline.simulated) << each.title;
    if (i > 0) {
      EXPECT_LE(advice.changes[i - 1].change, each.change);
    }
  }
  for (const AdvisedChange& each : advice.others) {
    EXPECT_FALSE(each.pays()) << each.title;
  }
}

TEST(Advise, IntervalsHoldWhatTheMachineDoes) {
  for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
    const SimulatedRun run(strategy);
    const Advice advice = run.advice({.top = 50});
    int held = 0, all = 0;
    for (const auto* list : {&advice.changes, &advice.others}) {
      for (const AdvisedChange& each : *list) {
        const Nanoseconds truth = run.truth(each);
        ++all;
        held += each.interval.low <= truth && truth <= each.interval.high ? 1 : 0;
        if (each.pays()) {
          EXPECT_LT(truth, 0) << strategy << ": " << each.title;
        }
      }
    }
    EXPECT_GE(held * 10, all * 8) << strategy << ": " << held << " of " << all;
  }
}

TEST(Advise, SaysWhatTheRunCannotTell) {
  std::vector<std::string> titles;
  for (const UnknownChange& each : SimulatedRun("full_shard").advice().unknown) {
    titles.push_back(each.title);
    EXPECT_NE(each.reason, "");
  }
  EXPECT_THAT(titles,
              ::testing::IsSupersetOf({"replicate the model instead of sharding it",
                                       "not sharded: 4 replicas, each with all parameters"}));
}

// The run's operators with other checkpoints, compared with the model's own, which are known.
TEST(Advise, CheckpointsOfARunAreThoseOfItsModel) {
  const SimulatedRun run("full_shard");
  const Advice advice = run.advice({.top = 50});
  int found = 0;
  for (const AdvisedChange& each : advice.others) {
    if (each.title.starts_with("checkpoint every")) {
      const Prediction model = run.changed(each);
      EXPECT_NEAR(static_cast<double>(each.change), static_cast<double>(run.truth(each)),
                  0.02 * static_cast<double>(each.duration))
          << each.title;
      EXPECT_NEAR(static_cast<double>(each.peak_allocated),
                  static_cast<double>(model.memory.peak_allocated),
                  0.05 * static_cast<double>(model.memory.peak_allocated))
          << each.title;
      ++found;
    }
  }
  EXPECT_EQ(found, 2);
}

TEST(Advise, HiddenTimesAreOfCollectivesOfTheRun) {
  const Advice advice = SimulatedRun("full_shard").advice();
  for (const AdvisedChange& each : advice.changes) {
    Nanoseconds sum = 0;
    for (const HiddenTime& hidden : each.hides) {
      EXPECT_GT(hidden.time, 0);
      sum += hidden.time;
    }
    EXPECT_GT(sum, 0) << each.title;
  }
}

TEST(Advise, ALimitExcludesChangesThatNeedMore) {
  const SimulatedRun run("full_shard");
  const Bytes own = run.advice().peak_allocated;
  const Advice advice = run.advice({.memory_limit = 2 * own, .top = 50});
  ASSERT_TRUE(advice.fits);
  for (const AdvisedChange& each : advice.changes) {
    EXPECT_LE(each.peak_reserved, 2 * own) << each.title;
  }
  // Below what the run needs, everything that fits is listed, even if it is slower.
  const Advice smaller = run.advice({.memory_limit = own / 2, .top = 50});
  EXPECT_FALSE(smaller.fits);
  for (const AdvisedChange& each : smaller.changes) {
    EXPECT_LE(each.peak_reserved, own / 2) << each.title;
  }
}

// The bound on the side of zero is 2.3263 / 1.6449 times as far from the change as the end of the
// 90 % interval, which a change may have below zero and still not pay.
TEST(Advise, TheVerdictFollowsFromTheBound) {
  const std::filesystem::path path = std::string(SHARDLENS_TEST_DATA) + "/../../traces/llama-h200";
  const Advice advice =
      advise(RecordedRun::open(std::span(&path, 1)), analysis::analyze(trace::Run::open(path)));
  std::map<Verdict, int> verdicts;
  for (const auto* list : {&advice.changes, &advice.others}) {
    for (const AdvisedChange& each : *list) {
      const auto change = static_cast<double>(each.change);
      const double half = (static_cast<double>(each.interval.high) - change) * 1.41425;
      EXPECT_NEAR(static_cast<double>(each.bound), each.change > 0 ? change - half : change + half,
                  1e-4 * half + 1);
      EXPECT_TRUE(each.fits);
      const bool certain = (each.change < 0) == (each.bound < 0);
      EXPECT_EQ(each.verdict, !certain          ? Verdict::kUncertain
                              : each.change < 0 ? Verdict::kPays
                                                : Verdict::kCosts)
          << each.title;
      EXPECT_EQ(each.pays(), list == &advice.changes);
      ++verdicts[each.verdict];
    }
  }
  EXPECT_GT(verdicts[Verdict::kCosts], 0);
  EXPECT_GT(verdicts[Verdict::kUncertain], 0);
  // Within less memory than the run's own plan needs, changes that do not fit have no other
  // verdict.
  const Advice smaller = SimulatedRun("full_shard").advice({.memory_limit = 1, .top = 50});
  EXPECT_TRUE(smaller.changes.empty());
  for (const AdvisedChange& each : smaller.others) {
    EXPECT_EQ(each.verdict, Verdict::kTooLarge);
    EXPECT_EQ(name_of(each.verdict), "does not fit");
  }
}

// Recorded over Gloo, where PyTorch's FSDP waits for each all-gather.
TEST(Advise, SaysThatPrefetchHidesNothingWhereAllGathersBlock) {
  const std::filesystem::path path =
      std::string(SHARDLENS_TEST_DATA) + "/pytorch_traces/fsdp2-default";
  const Advice advice =
      advise(RecordedRun::open(std::span(&path, 1)), analysis::analyze(trace::Run::open(path)));
  EXPECT_TRUE(advice.all_gathers_block);
  EXPECT_EQ(advice_json(advice)["all_gathers_block"], true);
  std::vector<std::string> titles;
  for (const auto* list : {&advice.changes, &advice.others}) {
    for (const AdvisedChange& each : *list) {
      titles.push_back(each.title);
      if (each.title == "prefetch the next unit in forward") {
        EXPECT_EQ(each.change, 0);
      }
    }
  }
  EXPECT_THAT(titles,
              ::testing::IsSupersetOf({"prefetch the next unit in forward",
                                       "not sharded: 2 replicas, each with all parameters"}));
  EXPECT_FALSE(SimulatedRun("full_shard").advice().all_gathers_block);
}

TEST(Advise, IsUncertainIfTheBaselineErrorExceedsTheGain) {
  Advice advice;
  advice.baseline = {.measured = 1000, .simulated = 900};
  EXPECT_FALSE(advice.is_uncertain());
  advice.changes.emplace_back().change = -50;
  EXPECT_TRUE(advice.is_uncertain());
  advice.changes.front().change = -101;
  EXPECT_FALSE(advice.is_uncertain());
}

TEST(Advise, TheCommittedCaptureHasChangesAndTheirJson) {
  const std::filesystem::path path =
      std::string(SHARDLENS_TEST_DATA) + "/../../traces/llama-emulated8";
  const Advice advice =
      advise(RecordedRun::open(std::span(&path, 1)), analysis::analyze(trace::Run::open(path)));
  EXPECT_LT(std::abs(advice.baseline.error()), 0.05);
  const nlohmann::ordered_json json = advice_json(advice);
  EXPECT_EQ(json["schema"], 1);
  EXPECT_GE(json["changes"].size() + json["others"].size(), 10U);
  for (const auto& each : json["others"]) {
    EXPECT_NO_THROW((void)plan::parse_plan(each["plan"].dump(), "test")) << each["title"];
    EXPECT_LE(each["interval_ns"][0], each["change_ns"]);
    EXPECT_GE(each["interval_ns"][1], each["change_ns"]);
  }
}

}  // namespace
}  // namespace shardlens::sim
