// Differences of sequences, worked out by hand.
#include "profiler/check/structure.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiler/check/run_summary.h"
#include "tests/support/generated_run.h"

namespace shardlens::check {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> lines(const std::vector<StructuralDifference>& list) {
  std::vector<std::string> out;
  for (const StructuralDifference& d : list) {
    out.push_back(d.kind + " " + unit_name(d.unit) + ": " + d.baseline + " | " + d.candidate);
  }
  return out;
}

HostItem unshard(const std::string& unit, const std::string& from = "") {
  return {"unshard", unit, true, from.empty() ? unit : from,
          from.empty() ? "own" : "backward_prefetch"};
}
HostItem reduce(const std::string& unit) {
  return {"reduce", unit, true, unit, ""};
}
HostItem reshard(const std::string& unit) {
  return {"reshard", unit, true, unit, ""};
}

StepStructure two_units() {
  StepStructure step;
  step.streams = {{{"a", "all_gather_backward", 100}, {"b", "all_gather_backward", 200}},
                  {{"b", "reduce_scatter", 200}, {"a", "reduce_scatter", 100}}};
  step.order = {unshard("b"), unshard("a", "b"), reshard("b"),
                reduce("b"),  reshard("a"),      reduce("a")};
  return step;
}

TEST(StructureTest, EqualStepsDoNotDiffer) {
  EXPECT_THAT(differences(two_units(), two_units()), IsEmpty());
}

TEST(StructureTest, CountsBytesAndUnits) {
  StepStructure other = two_units();
  other.streams[1].push_back({"a", "reduce_scatter", 100});
  other.streams[0][1].bytes = 208;
  EXPECT_THAT(lines(differences(two_units(), other)),
              ElementsAre("count a: 1 × reduce_scatter | 2 × reduce_scatter",
                          "bytes b: all_gather_backward of 200 bytes | "
                          "all_gather_backward of 208 bytes"));
  other = two_units();
  for (auto& stream : other.streams) {
    for (StreamItem& item : stream) {
      item.unit = item.unit == "b" ? "b, c" : item.unit;
    }
  }
  other.order.clear();
  EXPECT_THAT(lines(differences(two_units(), other)),
              ElementsAre("unit b: 1 × all_gather_backward of 200 bytes, 1 × reduce_scatter of 200 "
                          "bytes | absent",
                          "unit [b, c]: absent | 1 × all_gather_backward of 200 bytes, 1 × "
                          "reduce_scatter of 200 bytes"));
}

TEST(StructureTest, CollectiveOfNoUnitIsACount) {
  StepStructure other = two_units();
  other.streams[0].push_back({"<clip>", "all_reduce", 4});
  EXPECT_THAT(lines(differences(two_units(), other)),
              ElementsAre("count <clip>: 0 × all_reduce | 1 × all_reduce"));
}

TEST(StructureTest, AnotherStreamIsSaidByKind) {
  StepStructure other = two_units();
  other.streams[0].insert(other.streams[0].end(), other.streams[1].begin(), other.streams[1].end());
  other.streams.pop_back();
  EXPECT_THAT(
      lines(differences(two_units(), other)),
      ElementsAre("stream (root): all_gather in a stream of all_gather | all_gather in a stream of "
                  "all_gather, reduce_scatter",
                  "stream (root): reduce_scatter in a stream of reduce_scatter | reduce_scatter in "
                  "a stream of all_gather, reduce_scatter"));
}

TEST(StructureTest, PrefetchThatIsGoneExplainsItsAllGather) {
  StepStructure other = two_units();
  other.order = {unshard("b"), reshard("b"), reduce("b"), unshard("a"), reshard("a"), reduce("a")};
  EXPECT_THAT(lines(differences(two_units(), other)),
              ElementsAre("prefetch a: all_gather for backward by backward_prefetch from b | "
                          "all_gather for backward not prefetched"));
}

TEST(StructureTest, TheFewestItemsAreAccusedOfMoving) {
  StepStructure baseline, other;
  for (const char* unit : {"d", "c", "b", "a"}) {
    baseline.order.push_back(unshard(unit));
    baseline.order.push_back(reduce(unit));
  }
  for (const char* unit : {"d", "c", "b", "a"}) {
    other.order.push_back(unshard(unit));
  }
  for (const char* unit : {"d", "c", "b", "a"}) {
    other.order.push_back(reduce(unit));
  }
  // All reductions but the last come later, or else as many all-gathers come earlier.
  EXPECT_THAT(lines(differences(baseline, other)),
              ElementsAre("order d: reduce after all_gather for backward (d) | reduce after "
                          "all_gather for backward (a)",
                          "order c: reduce after all_gather for backward (c) | reduce after reduce "
                          "(d)",
                          "order b: reduce after all_gather for backward (b) | reduce after reduce "
                          "(c)"));
}

TEST(StructureTest, OrderInAStreamIsComparedWithoutRanges) {
  StepStructure baseline = two_units(), other = two_units();
  baseline.order.clear();
  other.order.clear();
  std::swap(other.streams[1][0], other.streams[1][1]);
  EXPECT_THAT(lines(differences(baseline, other)),
              ElementsAre("order b: reduce_scatter first | reduce_scatter after reduce_scatter "
                          "(a)"));
}

// The structure of a generated trace is the one that the generator was configured for.
TEST(StructureTest, IsReadFromATrace) {
  test::GeneratedRun what;
  what.layers = 2;
  what.steps = 4;
  const RunSummary run = summarize(what.run());
  ASSERT_EQ(run.structure.size(), 2U);
  ASSERT_EQ(run.structure[0].variants.size(), 1U);
  const StepStructure& step = run.structure[0].variants[0].structure;
  ASSERT_EQ(step.streams.size(), 2U);
  EXPECT_EQ(step.streams[0], (std::vector<StreamItem>{{"", "all_gather_forward", 1024},
                                                      {"layers.0", "all_gather_forward", 4096},
                                                      {"layers.1", "all_gather_forward", 4096},
                                                      {"layers.1", "all_gather_backward", 4096},
                                                      {"layers.0", "all_gather_backward", 4096}}));
  EXPECT_EQ(step.streams[1], (std::vector<StreamItem>{{"layers.1", "reduce_scatter", 4096},
                                                      {"layers.0", "reduce_scatter", 4096},
                                                      {"", "reduce_scatter", 1024}}));
  EXPECT_EQ(step.unsharded_peak, 1024 + 2 * 4096);
  EXPECT_EQ(run.structure[0].variants[0].structure, run.structure[1].variants[0].structure);
}

// Gloo ran the eight collectives of each of the four steps on two threads, in a different division
// each time: it is the same program.
TEST(StructureTest, ThreadsOfGlooDoNotCount) {
  const std::filesystem::path path =
      std::filesystem::path(SHARDLENS_TEST_DATA) / "step_kinds" / "closure";
  const RunSummary run = summarize(trace::Run::open(path));
  ASSERT_EQ(run.structure.size(), 1U);
  ASSERT_EQ(run.structure[0].variants.size(), 1U);
  EXPECT_EQ(run.structure[0].variants[0].steps, 4);
  const StepStructure& step = run.structure[0].variants[0].structure;
  ASSERT_EQ(step.streams.size(), 1U);
  std::vector<std::string> order;
  for (const StreamItem& item : step.streams[0]) {
    order.push_back(unit_name(item.unit) + " " + item.part);
  }
  EXPECT_THAT(order, ElementsAre("(root) all_gather_forward", "layers.0 all_gather_forward",
                                 "layers.1 all_gather_forward", "layers.1 all_gather_backward",
                                 "layers.0 all_gather_backward", "layers.1 reduce_scatter",
                                 "layers.0 reduce_scatter", "(root) reduce_scatter"));
}

}  // namespace
}  // namespace shardlens::check
