#include "sim/search/per_block.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "sim/search/block_plan.h"
#include "sim/search/evaluator.h"
#include "sim/search/prefetch_moves.h"
#include "tests/support/sanitized.h"

namespace shardlens::sim {
namespace {

struct Model {
  const char* hardware;
  int64_t hidden, blocks, seq;
};

Scenario scenario_of(const Model& of) {
  Scenario out;
  out.model = std::make_shared<const ScenarioModel>(plan::parse_model_config(
      fmt::format(R"({{"model_type": "llama", "hidden_size": {}, "intermediate_size": {},
                       "num_hidden_layers": {}, "num_attention_heads": 8, "vocab_size": 4096,
                       "max_position_embeddings": 8192}})",
                  of.hidden, 3 * of.hidden, of.blocks),
      "test"));
  out.machine = std::make_shared<const TargetMachine>(load_hardware(of.hardware));
  out.world_size = out.machine->ranks();
  out.step = {.batch = 2, .seq = of.seq};
  out.plan.mixed_precision.param_dtype = DType::kBF16;
  return out;
}

struct Choice {
  Candidate candidate;
  Outcome outcome;  // without a limit of memory
};

// Every subset of blocks that begin a unit, are kept and are checkpointed.
std::vector<BlockChoices> every_subset(size_t blocks) {
  std::vector<BlockChoices> out;
  for (uint32_t bits = 0; bits < 1U << (3 * blocks); ++bits) {
    BlockChoices choices(blocks);
    bool valid = true;
    for (size_t i = 0; i < blocks; ++i) {
      choices[i] = {.starts = (bits >> i & 1U) == 0,
                    .kept = (bits >> (blocks + i) & 1U) != 0,
                    .checkpointed = (bits >> (2 * blocks + i) & 1U) != 0};
      valid = valid && (choices[i].starts || (i > 0 && !choices[i].kept));
    }
    if (valid) {
      out.push_back(std::move(choices));
    }
  }
  return out;
}

// The plan with every number of units that each unit can prefetch, in both passes. Depths of the
// whole plan are among them.
std::vector<Candidate> every_count(const Candidate& of) {
  if (of.shard == 1) {
    return {of};
  }
  if (of.forward_prefetch > 0) {
    return {};
  }
  std::vector<size_t> starts;
  for (size_t i = 0; i < of.blocks.size(); ++i) {
    if (of.blocks[i].starts) {
      starts.push_back(i);
    }
  }
  // In forward the root is before all units, in backward after them.
  std::vector<Candidate> out{of};
  const size_t outer = of.outer_units ? 1 : 0;
  for (size_t unit = 0; unit <= starts.size(); ++unit) {
    const bool root = unit == starts.size();
    const size_t after = (root ? starts.size() + outer : starts.size() - unit - 1) + outer;
    const size_t before = root ? starts.size() + outer : unit;
    std::vector<Candidate> more;
    for (const Candidate& with : out) {
      for (size_t forward = 0; forward <= after; ++forward) {
        // Where nothing is before, there is only the default.
        for (size_t backward = before == 0 ? 1 : 0; backward <= std::max(before, size_t{1});
             ++backward) {
          Candidate& to = more.emplace_back(with);
          PrefetchCounts& count = root ? to.root_prefetch : to.blocks[starts[unit]].prefetch;
          count.forward = forward == 0 ? PrefetchCounts::kAsPlan : static_cast<int16_t>(forward);
          count.backward = backward == 1 ? PrefetchCounts::kAsPlan : static_cast<int16_t>(backward);
        }
      }
    }
    out = std::move(more);
  }
  return out;
}

// All plans of the space, the fastest first; with `lists`, also those with other prefetch lists
// than a depth.
std::vector<Choice> every_choice(const Scenario& scenario,
                                 const std::vector<Candidate>& frames,
                                 bool lists) {
  Evaluator evaluator(scenario, scenario.machine->target());
  std::vector<Choice> out;
  for (const BlockChoices& choices : every_subset(scenario.model->tree().blocks.size())) {
    const bool checkpoints = std::any_of(choices.begin(), choices.end(),
                                         [](const BlockChoice& c) { return c.checkpointed; });
    for (const Candidate& frame : frames) {
      // Units of one block are one of the subsets; without checkpoints nothing is saved.
      if (frame.blocks_per_unit == 1 && (checkpoints || !frame.saves.any())) {
        const Candidate one = with_blocks(frame, choices);
        for (const Candidate& each : lists ? every_count(one) : std::vector{one}) {
          out.push_back({each, evaluator.evaluate_unlimited(each)});
        }
      }
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const Choice& a, const Choice& b) {
    return a.outcome.figures.duration() < b.outcome.figures.duration();
  });
  return out;
}

// Searches with limits between the least memory of any plan and the most.
struct Tally {
  int all = 0, equal = 0;
  double worst = 0;  // share of the optimum by which a step is longer
};

void compare(const Model& model, bool lists, Tally& tally) {
  const Scenario scenario = scenario_of(model);
  const std::vector<Candidate> frames =
      plan_frames(scenario.model->tree(), scenario.world_size, scenario.step.samples());
  const std::vector<Choice> choices = every_choice(scenario, frames, lists);
  fmt::print("{} {}, {} blocks: {} plans\n", model.hardware, model.hidden, model.blocks,
             choices.size());
  Bytes least = choices.front().outcome.peak_reserved, most = least;
  for (const Choice& each : choices) {
    least = std::min(least, each.outcome.peak_reserved);
    most = std::max(most, each.outcome.peak_reserved);
  }
  for (int64_t part = 0; part <= 16; part += test::kSanitized ? 8 : 1) {
    SearchOptions options;
    options.memory_limit = least + (most - least) * part / 24;
    const Target target = limited(scenario.machine->target(), options.memory_limit);
    Evaluator evaluator(scenario, target);
    // Not the first whose memory is below the limit: an allocator at its limit gives cached memory
    // back.
    const auto optimum = std::find_if(choices.begin(), choices.end(), [&](const Choice& each) {
      return each.outcome.peak_allocated <= options.memory_limit &&
             evaluator.evaluate(each.candidate).fits;
    });
    const auto found = search_per_block(scenario, options);
    ASSERT_TRUE(found);
    EXPECT_TRUE(found->outcome.fits);
    const auto duration = static_cast<double>(found->outcome.figures.duration());
    const auto shortest = static_cast<double>(optimum->outcome.figures.duration());
    const double longer = duration / shortest - 1;
    EXPECT_LE(longer, 0.01) << model.hardware << " " << model.hidden << ", limit " << part << ": "
                            << name_of(found->candidate, scenario.world_size);
    EXPECT_LE(longer, found->gap);  // what it says of itself
    ++tally.all;
    if (duration <= shortest) {
      ++tally.equal;
    } else {
      fmt::print("{} {}, limit {}: {:.3f} % longer after {} steps\n  found {}\n  best  {}\n",
                 model.hardware, model.hidden, part, 100 * longer, found->evaluated,
                 name_of(found->candidate, scenario.world_size),
                 name_of(optimum->candidate, scenario.world_size));
    }
    tally.worst = std::max(tally.worst, longer);
  }
}

// In the whole space of plans, with every subset of blocks in each setting. SHARDLENS_ALL_PLANS=1
// also compares models of three blocks, and one of two with every prefetch list; enumerating all
// plans takes 20 s.
TEST(SearchPerBlock, FindsTheOptimumOfAllPlans) {
  std::vector<std::pair<Model, bool>> models{{{"8xH100", 4096, 2, 4096}, false}};
  if (std::getenv("SHARDLENS_ALL_PLANS") != nullptr) {
    models.insert(models.end(), {{{"4xPCIe", 512, 3, 1024}, false},
                                 {{"8xH100", 1024, 3, 2048}, false},
                                 {{"8xH100", 4096, 2, 4096}, true}});
  }
  Tally tally;
  for (const auto& [model, lists] : models) {
    compare(model, lists, tally);
  }
  fmt::print("{} of {} equal, at most {:.3f} % longer\n", tally.equal, tally.all,
             100 * tally.worst);
  EXPECT_GE(tally.equal * 100, tally.all * 95);
}

TEST(SearchPerBlock, NamesThePlanThatItPredicts) {
  const Scenario scenario = scenario_of({"8xH100", 1024, 12, 2048});
  SearchOptions options;
  options.memory_limit = Bytes{1500} << 20;
  const auto found = search_per_block(scenario, options, nullptr, 60);
  ASSERT_TRUE(found);
  Scenario named = scenario;
  named.plan = plan::parse_plan(plan::to_json(found->plan), "found");
  named.step.batch = found->candidate.batch;
  named.step.accumulate = found->candidate.accumulate;
  const Prediction again = evaluate(named);
  EXPECT_EQ(again.figures, found->outcome.figures);
  EXPECT_LE(again.memory.peak_allocated, options.memory_limit);
  const auto checkpointed =
      std::count_if(found->candidate.blocks.begin(), found->candidate.blocks.end(),
                    [](const BlockChoice& c) { return c.checkpointed; });
  EXPECT_EQ(static_cast<size_t>(checkpointed), found->plan.activation_checkpointing.size());
}

// A plan of three blocks over 8 ranks.
struct Counts {
  Scenario scenario = scenario_of({"8xH100", 512, 3, 512});
  Candidate candidate =
      with_blocks({.shard = 8, .forward_prefetch = 1, .batch = 2}, BlockChoices(3));

  [[nodiscard]] plan::Plan plan() const {
    return plan_of(candidate, scenario.plan, scenario.model->tree(), scenario.world_size);
  }
  [[nodiscard]] StepFigures figures() const {
    Evaluator evaluator(scenario, scenario.machine->target());
    return evaluator.evaluate_unlimited(candidate).figures;
  }
};

// The unit of the second block prefetches two units in forward, of which there is only one, and
// nothing in backward. The root prefetches two in backward. Others do as the rest of the plan.
TEST(PrefetchCounts, AreListsOfThePlan) {
  Counts of;
  EXPECT_TRUE(of.plan().forward_prefetch_lists.empty());
  of.candidate.blocks[1].prefetch = {.forward = 2, .backward = 0};
  of.candidate.root_prefetch.backward = 2;
  const plan::Plan plan = of.plan();
  const std::string a = "model.layers.0", b = "model.layers.1", c = "model.layers.2";
  EXPECT_EQ(plan.forward_prefetch, 0);
  EXPECT_EQ(plan.forward_prefetch_lists, (plan::PrefetchLists{{"", {a}}, {a, {b}}, {b, {c}}}));
  EXPECT_EQ(plan.backward_prefetch_lists, (plan::PrefetchLists{{"", {c, b}}, {b, {b}}}));
  EXPECT_NE(name_of(of.candidate, 8)
                .find("another forward prefetch at 1 unit, another backward prefetch at 2 units"),
            std::string::npos);
  Scenario named = of.scenario;
  named.plan = plan::parse_plan(plan::to_json(plan), "lists");
  named.step.batch = 2;
  EXPECT_EQ(evaluate(named).figures, of.figures());
}

TEST(PrefetchCounts, EqualCountsAreADepth) {
  Counts depth, counts;
  depth.candidate.forward_prefetch = 2;
  counts.candidate.root_prefetch.forward = 2;
  for (BlockChoice& each : counts.candidate.blocks) {
    each.prefetch = {.forward = 2, .backward = 1};
  }
  EXPECT_EQ(counts.figures(), depth.figures());
}

// A move changes only the units that it names; the plan's own depth is not written.
TEST(PrefetchMoves, ChangeTheUnitsThatTheyName) {
  Counts of;
  of.candidate.blocks[1].starts = false;  // two units and the root
  const std::vector<PrefetchMove> moves = prefetch_moves(of.candidate.blocks);
  // All three, {the first two, the root}, and single ones; two passes, four counts.
  EXPECT_EQ(moves.size(), (1U + 2U + 3U) * 2U * 4U);
  EXPECT_TRUE(apply({1, 3, &PrefetchCounts::forward, 2}, of.candidate));
  EXPECT_EQ(of.candidate.blocks[0].prefetch, PrefetchCounts{});
  EXPECT_EQ(of.candidate.blocks[1].prefetch, PrefetchCounts{});
  EXPECT_EQ(of.candidate.blocks[2].prefetch.forward, 2);
  EXPECT_EQ(of.candidate.root_prefetch.forward, 2);
  EXPECT_FALSE(apply({1, 3, &PrefetchCounts::forward, 2}, of.candidate));
  EXPECT_TRUE(apply({0, 3, &PrefetchCounts::forward, 1}, of.candidate));
  EXPECT_EQ(of.candidate.blocks[2].prefetch, PrefetchCounts{});
  EXPECT_FALSE(apply({0, 3, &PrefetchCounts::backward, 1}, of.candidate));
  of.candidate.shard = 1;
  EXPECT_FALSE(apply({0, 3, &PrefetchCounts::backward, 0}, of.candidate));
}

// The bounds are not above what they bound, and without a limit everything is kept.
TEST(SearchPerBlock, KeepsEverythingWithoutALimit) {
  const Scenario scenario = scenario_of({"8xH100", 1024, 12, 2048});
  SearchOptions options;
  options.memory_limit = Bytes{1} << 40;
  const auto found = search_per_block(scenario, options);
  ASSERT_TRUE(found);
  EXPECT_LE(found->gap, 0.01);
  for (const BlockChoice& each : found->candidate.blocks) {
    EXPECT_FALSE(each.checkpointed);
  }
  const SearchResult uniform = search(scenario, options);
  EXPECT_LE(static_cast<double>(found->outcome.figures.duration()),
            1.0001 * static_cast<double>(uniform.best()->outcome.figures.duration()));
}

// It starts from the best plan with equal blocks, so it is not longer.
TEST(SearchPerBlock, StartsFromThePlanWithEqualBlocks) {
  const Scenario scenario = scenario_of({"8xH100", 1024, 12, 2048});
  for (const int64_t mebibytes : {700, 900, 1200, 1800}) {
    SearchOptions options;
    options.memory_limit = mebibytes << 20;
    const SearchResult equal = search(scenario, options);
    ASSERT_NE(equal.best(), nullptr) << mebibytes;
    const auto found = search_per_block(scenario, options, &equal.best()->candidate, 20);
    ASSERT_TRUE(found);
    EXPECT_LE(found->outcome.figures.duration(), equal.best()->outcome.figures.duration())
        << mebibytes;
  }
}

TEST(SearchPerBlock, NothingFitsOrNotFsdp2) {
  Scenario scenario = scenario_of({"8xH100", 512, 3, 512});
  SearchOptions options;
  options.memory_limit = 1;
  EXPECT_FALSE(search_per_block(scenario, options));
  scenario.plan.dialect = plan::Dialect::kFsdp1;
  EXPECT_THROW((void)search_per_block(scenario, options), InputError);
}

// A cancelled search says so, and has what it found before.
TEST(SearchPerBlock, CanBeCancelled) {
  const Scenario scenario = scenario_of({"8xH100", 512, 3, 512});
  const std::atomic<bool> cancelled{true};
  SearchOptions options;
  options.memory_limit = Bytes{1} << 40;
  options.cancelled = &cancelled;
  EXPECT_FALSE(search_per_block(scenario, options));
}

}  // namespace
}  // namespace shardlens::sim
