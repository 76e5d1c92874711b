#include "sim/scenario/baseline_parts.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include <gtest/gtest.h>

#include "profiler/analysis/recover/recorded_program.h"
#include "sim/scenario/scenario.h"

namespace shardlens::sim {
namespace {

struct Opened {
  std::shared_ptr<const RecordedRun> run;
  analysis::Analysis analysis;
  BaselineParts parts;
};

Opened open(const char* name) {
  const std::filesystem::path path = std::string(SHARDLENS_TEST_DATA) + "/../../traces/" + name;
  const analysis::AnalyzedRun run = RecordedRun::read(std::span(&path, 1));
  Opened out{RecordedRun::of(run), analysis::analyze(run), {}};
  out.parts = baseline_parts(out.run, out.analysis).value();
  return out;
}

void expect_that_errors_sum(const Opened& of) {
  const std::array<double, 3> errors = of.parts.errors();
  EXPECT_NEAR(errors[0] + errors[1] + errors[2], of.run->baseline().error(), 1e-6);
  EXPECT_LE(std::abs(of.parts.measured.duration() - of.run->baseline().measured), 2);
  EXPECT_EQ(of.parts.simulated.duration(), of.run->baseline().simulated);
  EXPECT_EQ(of.parts.simulated, evaluate(own_scenario(of.run)).figures);
}

// Of three steps the one in the middle.
TEST(BaselineParts, AreThoseOfTheMedianStep) {
  const Opened of = open("llama-emulated8");
  expect_that_errors_sum(of);
  const std::vector<analysis::StepAnalysis>& steps = of.analysis.ranks[0].steps;
  ASSERT_EQ(steps.size(), 3U);
  const auto longer = [&](size_t a, size_t b) {
    return steps[a].figures.duration() > steps[b].figures.duration();
  };
  ASSERT_TRUE(longer(1, 2) && longer(2, 0));
  EXPECT_EQ(of.parts.measured, static_cast<const StepFigures&>(steps[2].figures));
}

// Of four steps (23.657, 23.688, 23.602 and 22.809 ms) the mean of the first and the third.
TEST(BaselineParts, AreTheMeanOfTwoStepsInTheMiddle) {
  const Opened of = open("llama-h200");
  expect_that_errors_sum(of);
  const std::vector<analysis::StepAnalysis>& steps = of.analysis.ranks[0].steps;
  ASSERT_EQ(steps.size(), 4U);
  EXPECT_EQ(of.parts.measured.compute, (steps[0].figures.compute + steps[2].figures.compute) / 2);
  EXPECT_EQ(of.parts.measured.idle, (steps[0].figures.idle + steps[2].figures.idle) / 2);
}

// Of two ranks with two steps each: the first rank's first one (44.287 ms) and the second rank's
// second one (40.799 ms).
TEST(BaselineParts, AreOfTheStepsOfAllRanks) {
  const Opened of = open("../tests/data/pytorch_traces/ddp-buckets");
  expect_that_errors_sum(of);
  const std::vector<analysis::RankAnalysis>& ranks = of.analysis.ranks;
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(of.parts.measured.compute,
            (ranks[0].steps[0].figures.compute + ranks[1].steps[1].figures.compute) / 2);
}

// The error of the step is not that of its parts: on a run where they cancel, the parts show it.
TEST(BaselineParts, ShowErrorsThatCancel) {
  BaselineParts parts;
  parts.measured = {.compute = 600, .exposed_comm = 300, .exposed_copy = 40, .idle = 60};
  parts.simulated = {.compute = 700, .exposed_comm = 190, .exposed_copy = 20, .idle = 90};
  const std::array<double, 3> errors = parts.errors();
  EXPECT_DOUBLE_EQ(errors[0], 0.1);
  EXPECT_DOUBLE_EQ(errors[1], -0.11);
  EXPECT_DOUBLE_EQ(errors[2], 0.01);
}

}  // namespace
}  // namespace shardlens::sim
