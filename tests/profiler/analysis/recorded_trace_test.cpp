// A trace that PyTorch FSDP2 recorded on two Gloo ranks. It is not part of the repository; without
// it these tests are skipped.
#include <filesystem>

#include <gtest/gtest.h>

#include "profiler/analysis/analysis.h"

namespace shardlens::analysis {
namespace {

const std::filesystem::path kTraces = SHARDLENS_OTHER_TRACES;

class RecordedTraceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::is_directory(kTraces)) {
      GTEST_SKIP() << "no recorded traces at " << kTraces;
    }
  }
};

TEST_F(RecordedTraceTest, GlooFsdp2HasEveryCollectiveAtItsUnit) {
  const Analysis result = analyze(trace::Run::open(kTraces / "gloo_fsdp2"));
  ASSERT_EQ(result.ranks.size(), 2U);
  for (const RankAnalysis& rank : result.ranks) {
    const WindowFigures& f = rank.figures;
    EXPECT_EQ(rank.steps.size(), 3U);
    EXPECT_EQ(f.compute + f.exposed_comm + f.exposed_copy + f.idle, f.duration());
    // Three layers: gathered for forward and again for backward, reduced once, in each of three
    // steps.
    EXPECT_EQ(f.collectives.at(CollectiveKind::kAllGather).count, 18);
    EXPECT_EQ(f.collectives.at(CollectiveKind::kReduceScatter).count, 9);
    EXPECT_GT(f.compute, 0);
    EXPECT_GT(f.exposed_copy, 0);
    // The three layers, what runs between them, and what belongs to no unit.
    ASSERT_GE(rank.units.size(), 3U);
    Nanoseconds exposed = 0;
    for (const UnitFigures& unit : rank.units) {
      if (!unit.is_unit || unit.fqn.empty()) {
        continue;
      }
      for (const UnitPart part :
           {UnitPart::kAllGatherForward, UnitPart::kAllGatherBackward, UnitPart::kReduceScatter}) {
        const auto& figures = unit.parts[static_cast<size_t>(part)];
        ASSERT_TRUE(figures.has_value()) << unit.fqn;
        EXPECT_EQ(figures->count, 3) << unit.fqn << " " << name_of(part);
      }
      exposed += unit.exposed();
    }
    EXPECT_EQ(exposed, f.exposed_comm);
  }
  // Layer 2's backward is the one that FSDP2 does not prefetch.
  const UnitFigures& last = result.ranks[0].units.at(2);
  EXPECT_EQ(last.fqn, "2");
  EXPECT_EQ(last.parts[1]->issued_by, schedule::Cause::kOwn);
  EXPECT_EQ(result.ranks[0].units.at(1).parts[1]->issued_by, schedule::Cause::kBackwardPrefetch);
}

// Values that an independent program computed from the same file: comm 46876.493 us, exposed
// 39559.468 us.
TEST_F(RecordedTraceTest, NcclTraceEqualsAnIndependentCount) {
  const Analysis result = analyze(trace::Run::open(kTraces / "third_party/nccl_parser_config"));
  EXPECT_EQ(result.ranks.at(0).figures.comm, 46'876'493);
  EXPECT_EQ(result.ranks.at(0).figures.exposed_comm, 39'559'468);
}

TEST_F(RecordedTraceTest, SumsHoldOnEveryTrace) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kTraces)) {
    if (!entry.path().string().ends_with(".json.gz")) {
      continue;
    }
    const Analysis result = analyze(trace::Run::open(entry.path()));
    const RankAnalysis& rank = result.ranks.at(0);
    std::vector<WindowFigures> all{rank.figures};
    for (const StepAnalysis& step : rank.steps) {
      all.push_back(step.figures);
    }
    for (const WindowFigures& f : all) {
      EXPECT_EQ(f.compute + f.exposed_comm + f.exposed_copy + f.idle, f.duration()) << entry.path();
      EXPECT_GE(f.idle, 0) << entry.path();
      Nanoseconds kinds = f.unknown.exposed;
      for (const auto& [kind, figures] : f.collectives) {
        kinds += figures.exposed;
      }
      EXPECT_EQ(kinds, f.exposed_comm) << entry.path();
    }
    Nanoseconds units = 0;
    for (const UnitFigures& unit : rank.units) {
      units += unit.exposed();
    }
    EXPECT_EQ(units, rank.figures.exposed_comm) << entry.path();
  }
}

}  // namespace
}  // namespace shardlens::analysis
