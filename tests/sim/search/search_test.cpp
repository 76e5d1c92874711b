#include "sim/search/search.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plan/resolve.h"

namespace shardlens::sim {
namespace {

constexpr int64_t kRanks = 4, kSeq = 512, kSamples = 8;

const std::shared_ptr<const ScenarioModel>& model() {
  static const auto config = std::make_shared<const ScenarioModel>(plan::parse_model_config(
      R"({"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024,
          "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 256,
          "max_position_embeddings": 1024})",
      "test"));
  return config;
}

Scenario scenario() {
  Scenario out;
  out.model = model();
  out.world_size = kRanks;
  out.step = {.batch = kSamples, .seq = kSeq};
  out.machine = std::make_shared<const TargetMachine>(load_hardware("8xH100"));
  return out;
}

SearchOptions options(Bytes limit) {
  SearchOptions out;
  out.memory_limit = limit;
  return out;
}

SearchResult found(const SearchOptions& options) {
  return search(scenario(), options);
}

// Every candidate of the space, predicted one after the other without pruning.
std::vector<Found> all_of(Bytes limit) {
  HardwareSpec hardware = load_hardware("8xH100");
  hardware.gpu.memory = limit;
  hardware.outside = {};  // the search's limit is that of the allocator
  Scenario one = scenario();
  one.machine = std::make_shared<const TargetMachine>(hardware);
  std::vector<Found> out;
  for (const Candidate& candidate : candidates(model()->tree(), kRanks, kSamples)) {
    one.plan = plan_of(candidate, plan::Plan{}, model()->tree(), kRanks);
    one.step.batch = candidate.batch;
    one.step.accumulate = candidate.accumulate;
    const Prediction now = evaluate(one);
    Outcome outcome;
    outcome.figures = now.figures;
    outcome.peak_reserved = now.memory.peak_reserved;
    outcome.fits = now.memory.fits;
    out.push_back({candidate, outcome});
  }
  return out;
}

std::set<std::string> names(const std::vector<Found>& of) {
  std::set<std::string> out;
  for (const Found& each : of) {
    out.insert(name_of(each.candidate, kRanks));
  }
  return out;
}

constexpr Bytes kTight = 200 << 20, kEnough = Bytes{1} << 40;

// A candidate has other units than the base plan, so it has none of its prefetch lists.
TEST(Search, PrefetchListsOfTheBasePlanAreNotKept) {
  Scenario lists = scenario();
  lists.plan = plan::parse_plan(R"({"version": 1,
    "forward_prefetch": {"model.layers.0": ["model.layers.1", "model.layers.2"]},
    "backward_prefetch": {"model.layers.3": ["model.layers.1"]}})",
                                "plan.json");
  const SearchResult of_lists = search(lists, options(kEnough)), plain = found(options(kEnough));
  EXPECT_EQ(of_lists.refused, 0U) << of_lists.refusal;
  EXPECT_EQ(of_lists.evaluated, plain.evaluated);
  ASSERT_EQ(of_lists.pareto.size(), plain.pareto.size());
  for (size_t i = 0; i < plain.pareto.size(); ++i) {
    EXPECT_EQ(of_lists.pareto[i].outcome, plain.pareto[i].outcome);
  }
}

TEST(Search, FindsWhatTryingEverythingFinds) {
  const std::vector<Found> all = all_of(kTight);
  const size_t fits = static_cast<size_t>(
      std::count_if(all.begin(), all.end(), [](const Found& each) { return each.outcome.fits; }));
  ASSERT_GT(fits, 10U);
  ASSERT_LT(fits, all.size() - 10);  // the limit excludes some
  const SearchResult result = found(options(kTight));
  EXPECT_EQ(result.all, all.size());
  EXPECT_GT(result.pruned, 0U);
  EXPECT_EQ(result.evaluated + result.pruned, result.all);
  EXPECT_EQ(names(result.pareto), names(pareto_front(all)));
  ASSERT_NE(result.best(), nullptr);
  for (const Found& each : all) {
    if (each.outcome.fits) {
      EXPECT_LE(result.best()->outcome.figures.duration(), each.outcome.figures.duration());
    }
  }
  EXPECT_THAT(result.why, testing::HasSubstr(name_of(result.best()->candidate, kRanks)));
}

// With the memory that the smallest plan with offload needs, no other plan fits.
TEST(Search, OffloadsOnlyIfNothingElseFits) {
  Scenario one = scenario();
  one.plan.cpu_offload = true;
  const SearchResult offloaded = search(one, options(kEnough));
  Bytes least = kEnough;
  for (const Found& each : offloaded.pareto) {
    EXPECT_FALSE(each.candidate.cpu_offload);  // the base plan has it already
    least = std::min(least, each.outcome.peak_reserved);
  }
  for (const Found& each : all_of(least)) {
    ASSERT_FALSE(each.outcome.fits);
  }
  const SearchResult result = found(options(least));
  ASSERT_NE(result.best(), nullptr);
  const Candidate& best = result.best()->candidate;
  EXPECT_TRUE(best.cpu_offload);
  EXPECT_TRUE(plan_of(best, plan::Plan{}, model()->tree(), kRanks).cpu_offload);
  EXPECT_THAT(name_of(best, kRanks), testing::HasSubstr("CPU offload"));
  EXPECT_THAT(result.why, testing::HasSubstr("without CPU offload nothing fits"));
  one.plan = plan_of(best, plan::Plan{}, model()->tree(), kRanks);
  one.step.batch = best.batch;
  one.step.accumulate = best.accumulate;
  EXPECT_EQ(evaluate(one).figures, result.best()->outcome.figures);
  EXPECT_FALSE(found(options(kEnough)).best()->candidate.cpu_offload);
}

TEST(Search, ThreadsChangeNothing) {
  SearchOptions one = options(kTight), four = options(kTight);
  one.threads = 1;
  four.threads = 4;
  const SearchResult a = found(one), b = found(four);
  EXPECT_EQ(a.evaluated, b.evaluated);
  EXPECT_EQ(a.why, b.why);
  ASSERT_EQ(a.pareto.size(), b.pareto.size());
  for (size_t i = 0; i < a.pareto.size(); ++i) {
    EXPECT_EQ(a.pareto[i].candidate, b.pareto[i].candidate);
    EXPECT_EQ(a.pareto[i].outcome, b.pareto[i].outcome);
  }
}

TEST(Search, GoesOnFromWhatIsKnown) {
  SearchOptions first = options(kTight);
  std::unordered_map<std::string, Outcome> known;
  first.on_progress = [&](const Found& each, size_t, size_t) {
    known[name_of(each.candidate, kRanks)] = each.outcome;
  };
  const SearchResult whole = found(first);
  EXPECT_EQ(known.size(), whole.evaluated);
  SearchOptions again = options(kTight);
  again.known = known;
  again.known.erase(known.begin()->first);
  size_t predicted = 0;
  again.on_progress = [&](const Found&, size_t, size_t) { ++predicted; };
  const SearchResult resumed = found(again);
  EXPECT_EQ(predicted, 1U);
  EXPECT_EQ(resumed.why, whole.why);
}

TEST(Search, CancelledKeepsWhatItHas) {
  std::atomic<bool> cancelled{false};
  SearchOptions stop = options(kTight);
  stop.threads = 1;
  stop.cancelled = &cancelled;
  stop.on_progress = [&](const Found&, size_t done, size_t) { cancelled = done >= 5; };
  const SearchResult result = found(stop);
  EXPECT_TRUE(result.cancelled);
  EXPECT_EQ(result.evaluated, 5U);
}

TEST(Search, NothingFits) {
  const SearchResult result = found(options(1 << 20));
  EXPECT_EQ(result.best(), nullptr);
  EXPECT_EQ(result.why, "");
  EXPECT_FALSE(result.cancelled);
}

// With a choice of precisions, the search finds what a search in each of them finds.
TEST(Search, PrecisionsFindWhatASearchInEachFinds) {
  const std::vector<Precision> precisions{
      {DType::kF32, DType::kF32}, {DType::kBF16, DType::kF32}, {DType::kBF16, DType::kBF16}};
  SearchOptions several = options(kTight);
  several.precisions = precisions;
  several.threads = 3;
  const SearchResult result = found(several);
  std::vector<Found> each;
  size_t evaluated = 0;
  ASSERT_EQ(result.by_precision.size(), precisions.size());
  for (size_t i = 0; i < precisions.size(); ++i) {
    Scenario one = scenario();
    one.plan.mixed_precision.param_dtype = precisions[i].param;
    one.plan.mixed_precision.reduce_dtype = precisions[i].reduce;
    const SearchResult alone = search(one, options(kTight));
    evaluated += alone.evaluated;
    EXPECT_EQ(result.by_precision[i].precision, precisions[i]);
    ASSERT_TRUE(result.by_precision[i].best);
    EXPECT_EQ(result.by_precision[i].best->outcome, alone.best()->outcome);
    for (Found pareto : alone.pareto) {
      pareto.candidate.precision = precisions[i];
      each.push_back(pareto);
    }
  }
  EXPECT_EQ(result.evaluated, evaluated);
  EXPECT_EQ(names(result.pareto), names(pareto_front(each)));
  // bf16 has half the bytes and faster products.
  EXPECT_EQ(result.best()->candidate.precision->param, DType::kBF16);
  const plan::Plan plan = plan_of(result.best()->candidate, plan::Plan{}, model()->tree(), kRanks);
  EXPECT_EQ(plan.mixed_precision.param_dtype, DType::kBF16);
  EXPECT_THAT(name_of(result.best()->candidate, kRanks), testing::HasSubstr(", bf16/"));
}

// Named fp32 is the same as no mixed precision.
TEST(Search, PrecisionOfTheParametersChangesNothing) {
  SearchOptions named = options(kTight);
  named.precisions = {{DType::kF32, DType::kF32}};
  const SearchResult a = found(options(kTight)), b = found(named);
  ASSERT_EQ(a.pareto.size(), b.pareto.size());
  for (size_t i = 0; i < a.pareto.size(); ++i) {
    EXPECT_EQ(a.pareto[i].outcome, b.pareto[i].outcome);
  }
}

TEST(Search, PrecisionsAreParsed) {
  EXPECT_EQ(parse_precision("bf16"), (Precision{DType::kBF16, DType::kF32}));
  EXPECT_EQ(parse_precision("fp16/fp16"), (Precision{DType::kF16, DType::kF16}));
  EXPECT_EQ(parse_precision("fp32/bf16"), (Precision{DType::kF32, DType::kBF16}));
  for (const char* text : {"", "/", "bf16/", "/fp32", "bf16/fp32/", "int8", "BF16", " bf16"}) {
    EXPECT_FALSE(parse_precision(text)) << text;
  }
  for (const char* text : {"fp32/fp32", "bf16/fp16"}) {
    EXPECT_EQ(name_of(*parse_precision(text)), text);
  }
}

TEST(Candidates, AreDistinctPlansThatResolve) {
  const plan::ModuleTree& tree = model()->tree();
  std::set<std::string> plans, named;
  const std::vector<Candidate> all = candidates(tree, kRanks, kSamples);
  for (const Candidate& each : all) {
    const plan::Plan plan = plan_of(each, plan::Plan{}, tree, kRanks);
    EXPECT_NO_THROW((void)plan::resolve(plan, tree, kRanks));
    EXPECT_EQ(each.batch * each.accumulate, kSamples);
    plans.insert(plan::to_json(plan) + std::to_string(each.batch));
    named.insert(name_of(each, kRanks));
  }
  EXPECT_EQ(plans.size(), all.size());
  EXPECT_EQ(named.size(), all.size());
}

// Before, each number up to the samples was tried as a divisor.
TEST(Candidates, ManySamplesAreDividedAtOnce) {
  const std::vector<Candidate> all = candidates(model()->tree(), kRanks, int64_t{1} << 30);
  ASSERT_FALSE(all.empty());
  std::set<int64_t> batches;
  for (const Candidate& each : all) {
    EXPECT_EQ(each.batch * each.accumulate, int64_t{1} << 30);
    batches.insert(each.batch);
  }
  // A microbatch has at most 2^20 samples and a step at most 10000 microbatches.
  EXPECT_EQ(batches, (std::set<int64_t>{1 << 17, 1 << 18, 1 << 19, 1 << 20}));
}

// Without a limit of its own a search has that of the machine's allocator.
TEST(Search, FitsIntoTheMachinesMemory) {
  HardwareSpec hardware = load_hardware("8xH100");
  ASSERT_GT(hardware.outside.total(), 0);
  hardware.gpu.memory = kTight + hardware.outside.total();
  Scenario small = scenario();
  small.machine = std::make_shared<const TargetMachine>(hardware);
  const SearchResult by_machine = search(small, {}), by_limit = found(options(kTight));
  ASSERT_FALSE(by_machine.pareto.empty());
  EXPECT_GT(by_machine.pruned, 0U);
  EXPECT_EQ(names(by_machine.pareto), names(by_limit.pareto));
  EXPECT_EQ(by_machine.why, by_limit.why);
  EXPECT_THAT(by_machine.why, testing::HasSubstr("fits in 0.2 GiB"));
  for (const Found& each : by_machine.pareto) {
    EXPECT_LE(each.outcome.peak_reserved, kTight);
  }
}

// Step, peak, exposed: the third is slower and larger than the first, the fourth does not fit.
TEST(ParetoFront, KeepsWhatNothingBeatsInAll) {
  const auto at = [](Nanoseconds step, Bytes peak, Nanoseconds exposed, bool fits = true) {
    Found out;
    out.outcome.figures.exposed_comm = exposed;
    out.outcome.figures.compute = step - exposed;
    out.outcome.peak_reserved = peak;
    out.outcome.fits = fits;
    return out;
  };
  const std::vector<Found> front = pareto_front(
      {at(20, 5, 9), at(10, 8, 4), at(12, 9, 4), at(1, 1, 1, false), at(30, 9, 0), at(10, 8, 4)});
  ASSERT_EQ(front.size(), 3U);
  EXPECT_EQ(front[0].outcome, at(10, 8, 4).outcome);
  EXPECT_EQ(front[1].outcome, at(20, 5, 9).outcome);
  EXPECT_EQ(front[2].outcome, at(30, 9, 0).outcome);
}

}  // namespace
}  // namespace shardlens::sim
