#include "sim/advise/advise.h"

#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>

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

TEST(Advise, ListsGainsTheLargestFirst) {
  const Advice advice = SimulatedRun("full_shard").advice({.top = 20});
  ASSERT_FALSE(advice.changes.empty());
  for (size_t i = 0; i < advice.changes.size(); ++i) {
    const AdvisedChange& each = advice.changes[i];
    EXPECT_TRUE(each.pays()) << each.title;
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
  std::set<std::string> ids;
  for (const auto* list : {&advice.changes, &advice.others}) {
    for (const AdvisedChange& each : *list) {
      EXPECT_TRUE(ids.insert(each.id).second) << each.id;
    }
  }
  EXPECT_TRUE(ids.contains("reshard=no"));
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
        if (each.odds.verdict == Verdict::kPays) {
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
    for (const HiddenTime& hidden : each.hides) {
      EXPECT_GT(hidden.time, 0) << each.title;
    }
  }
  ASSERT_FALSE(advice.changes.empty());
  EXPECT_FALSE(advice.changes.front().hides.empty());  // the largest gain
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

// Tables of the normal distribution: 0.9495 of it is below 1.64, 0.9893 below 2.30, and 0.99 below
// 2.3263.
TEST(Advise, OddsAreThoseOfANormalError) {
  const Odds probable = odds_of(-164, 100, 10'000, true);
  EXPECT_NEAR(probable.probability, 0.9495, 1e-4);
  EXPECT_EQ(probable.verdict, Verdict::kProbablyPays);
  EXPECT_EQ(probable.text(), "probably pays, odds 94 in 100");
  EXPECT_EQ(odds_of(-230, 100, 10'000, true).text(), "probably pays, odds 98 in 100");
  EXPECT_EQ(odds_of(-233, 100, 10'000, true).text(), "pays");
  const Odds loses = odds_of(164, 100, 10'000, true);
  EXPECT_NEAR(loses.probability, 1 - 0.9495, 1e-4);
  EXPECT_EQ(loses.text(), "probably loses, odds 94 in 100");
  EXPECT_EQ(odds_of(233, 100, 10'000, true).text(), "loses");
  EXPECT_EQ(odds_of(-233, 100, 10'000, false).text(), "does not fit");
  // Half a per cent of the step, however certain it is.
  EXPECT_EQ(odds_of(-50, 1, 10'000, true).text(), "no difference");
  EXPECT_EQ(odds_of(-51, 1, 10'000, true).text(), "pays");
  EXPECT_EQ(odds_of(50, 100, 10'000, true).in_100(), std::nullopt);
  EXPECT_EQ(odds_of(-60, 0, 10'000, true).probability, 1);
  EXPECT_EQ(odds_of(0, 0, 10'000, true).probability, 0.5);
}

// The bound on the side of zero is 2.3263 / 1.6449 times as far from the change as the end of the
// 90 % interval; a change pays if it is below zero too.
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
      const bool counts = std::abs(change) > 0.005 * static_cast<double>(advice.baseline.simulated);
      const Verdict gains = certain ? Verdict::kPays : Verdict::kProbablyPays;
      const Verdict loses = certain ? Verdict::kLoses : Verdict::kProbablyLoses;
      EXPECT_EQ(each.odds.verdict, !counts           ? Verdict::kNoDifference
                                   : each.change < 0 ? gains
                                                     : loses)
          << each.title;
      EXPECT_EQ(each.pays(), list == &advice.changes);
      ++verdicts[each.odds.verdict];
    }
  }
  EXPECT_GT(verdicts[Verdict::kNoDifference], 0);
  EXPECT_GT(verdicts[Verdict::kLoses] + verdicts[Verdict::kProbablyLoses], 0);
  // Within less memory than the run's own plan needs, changes that do not fit have no other
  // verdict.
  const Advice smaller = SimulatedRun("full_shard").advice({.memory_limit = 1, .top = 50});
  EXPECT_TRUE(smaller.changes.empty());
  for (const AdvisedChange& each : smaller.others) {
    EXPECT_EQ(each.odds.text(), "does not fit");
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
    EXPECT_EQ(each["odds"].is_number(), each["verdict"].get<std::string>().starts_with("probably"));
    EXPECT_GE(each["probability"], 0);
    EXPECT_LE(each["probability"], 1);
    EXPECT_NE(each["id"], "");
    EXPECT_LE(each["interval_ns"][0], each["change_ns"]);
    EXPECT_GE(each["interval_ns"][1], each["change_ns"]);
  }
}

}  // namespace
}  // namespace shardlens::sim
