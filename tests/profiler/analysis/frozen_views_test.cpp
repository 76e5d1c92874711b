#include "profiler/analysis/exposed/frozen_views.h"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiler/analysis/analysis.h"
#include "profiler/report/analysis_report.h"
#include "tests/profiler/analysis/trace_builder.h"

namespace shardlens::analysis {
namespace {

using test::TraceBuilder;
using testing::ElementsAre;
using testing::HasSubstr;

// Builds a step of FSDP2's ranges, without actions: as in a trace of PyTorch, only the unit of a
// collective is known.
class Step {
 public:
  Step() { b.step(1, 0, 10'000); }

  void root_begins() { range("FSDP::root_pre_forward"); }
  void forward(const std::string& unit) {
    range("FSDP::pre_forward (" + unit + ")");
    compute(10);
    range("FSDP::post_forward (" + unit + ")");
  }
  void begin(const std::string& unit) { range("FSDP::pre_forward" + suffix(unit)); }
  void end(const std::string& unit) { range("FSDP::post_forward" + suffix(unit)); }
  // The unit's backward takes `length`.
  void backward(const std::string& unit, Nanoseconds length = 100) {
    range("FSDP::pre_backward" + suffix(unit));
    compute(length);
  }
  // Overlaps what follows.
  void reduce(const std::string& unit, Nanoseconds length = 30) {
    const Nanoseconds issued = now;
    range("FSDP::post_backward_reduce" + suffix(unit));
    free_at_ = std::max(free_at_, issued) + length;
    b.communication({.kind = CollectiveKind::kReduceScatter,
                     .fqn = unit,
                     .issued = issued,
                     .start = free_at_ - length,
                     .end = free_at_},
                    ++action_);
  }
  // The host waits for the reductions.
  void wait() { now = std::max(now, free_at_); }
  void compute(Nanoseconds length) {
    b.op("aten::mm", now, now + length);
    now += length;
  }
  void range(const std::string& name, Nanoseconds length = 2) {
    b.range(name, now, now + length);
    now += length;
  }
  [[nodiscard]] Analysis analyzed() { return analyze(trace::Run::of({b.finish()})); }
  [[nodiscard]] std::optional<FrozenViews> found() { return analyzed().ranks.at(0).frozen_views; }

  TraceBuilder b;
  Nanoseconds now = 10;

 private:
  static std::string suffix(const std::string& unit) {
    return unit.empty() ? "" : " (" + unit + ")";
  }
  Nanoseconds free_at_ = 0;
  uint32_t action_ = 0;
};

void forward_of_three(Step& step) {
  step.root_begins();
  step.begin("");
  for (const char* unit : {"0", "1", "2"}) {
    step.forward(unit);
  }
  step.end("");
}

void frozen_backward(Step& step) {
  step.backward("", 5);
  for (const char* unit : {"2", "1", "0"}) {
    step.backward(unit);
  }
  for (const char* unit : {"2", "1", "0", ""}) {
    step.reduce(unit);
    step.wait();
  }
}

void fresh_backward(Step& step) {
  step.backward("", 5);
  for (const char* unit : {"2", "1", "0"}) {
    step.backward(unit);
    step.reduce(unit);
  }
  step.reduce("");
  step.wait();
}

TEST(FrozenViewsTest, ReductionsBehindTheWholeBackwardAreNamed) {
  Step step;
  forward_of_three(step);
  frozen_backward(step);
  const Analysis result = step.analyzed();
  const auto& frozen = result.ranks[0].frozen_views;
  ASSERT_TRUE(frozen.has_value());
  EXPECT_EQ(frozen->backwards, 1);
  EXPECT_THAT(frozen->late, ElementsAre("2", "1"));  // 0 and the root end the step anyway
  EXPECT_THAT(frozen->found, ElementsAre("backward (root)", "backward (2)", "backward (1)",
                                         "backward (0)", "reduce_scatter (2)", "reduce_scatter (1)",
                                         "reduce_scatter (0)", "reduce_scatter (root)"));
  EXPECT_THAT(frozen->fresh, ElementsAre("backward (root)", "backward (2)", "reduce_scatter (2)",
                                         "backward (1)", "reduce_scatter (1)", "backward (0)",
                                         "reduce_scatter (0)", "reduce_scatter (root)"));
  // Two reductions of 30 ns; backward had 200 ns of compute that could have hidden them.
  EXPECT_EQ(frozen->lost, 60);
  const auto cause = [&](const std::string& fqn) {
    for (const UnitFigures& unit : result.ranks[0].units) {
      if (unit.fqn == fqn) {
        return unit.parts[static_cast<size_t>(UnitPart::kReduceScatter)]->cause;
      }
    }
    return std::optional<ExposedCause>();
  };
  EXPECT_EQ(cause("2"), ExposedCause::kFrozenViews);
  EXPECT_EQ(cause("1"), ExposedCause::kFrozenViews);
  EXPECT_NE(cause("0"), ExposedCause::kFrozenViews);
  const std::string text = report::analysis_text(result, {});
  EXPECT_THAT(text, HasSubstr("the gradients of 2, 1 were reduced only after the whole backward"));
  EXPECT_THAT(text, HasSubstr("which could have overlapped with backward"));
  EXPECT_THAT(text, HasSubstr("\"views\": \"fresh\""));
  const std::string json = report::analysis_json(result);
  EXPECT_THAT(json, HasSubstr(R"("frozen_views":{"backwards":1,"late":["2","1"],"lost_ns":60)"));
}

TEST(FrozenViewsTest, NoMoreIsLostThanBackwardCouldHide) {
  Step step;
  forward_of_three(step);
  step.backward("", 5);
  for (const char* unit : {"2", "1", "0"}) {
    step.backward(unit, 10);
  }
  for (const char* unit : {"2", "1", "0", ""}) {
    step.reduce(unit, 200);
    step.wait();
  }
  EXPECT_EQ(step.found()->lost, 20);  // the backwards of 1 and 0
}

TEST(FrozenViewsTest, FreshViewsAreNotAccused) {
  Step step;
  forward_of_three(step);
  fresh_backward(step);
  const Analysis result = step.analyzed();
  EXPECT_EQ(result.ranks[0].frozen_views, std::nullopt);
  EXPECT_THAT(report::analysis_json(result), HasSubstr(R"("frozen_views":null)"));
}

TEST(FrozenViewsTest, APlanThatSaysFreshIsBelieved) {
  Step step;
  forward_of_three(step);
  frozen_backward(step);
  trace::Run run = trace::Run::of({step.b.finish()});
  run.planned.emplace();
  EXPECT_EQ(analyze(run).ranks[0].frozen_views, std::nullopt);
}

TEST(FrozenViewsTest, EachBackwardIsJudgedAlone) {
  Step step;
  for (int microbatch = 0; microbatch < 3; ++microbatch) {
    forward_of_three(step);
    frozen_backward(step);
  }
  EXPECT_EQ(step.found()->backwards, 3);
}

// Without sync, only the last microbatch reduces, after all units have run in the others.
TEST(FrozenViewsTest, AccumulationIsNotAccused) {
  for (const bool sync : {true, false}) {
    Step step;
    for (int microbatch = 0; microbatch < 3; ++microbatch) {
      forward_of_three(step);
      if (sync || microbatch == 2) {
        fresh_backward(step);
      } else {
        for (const char* unit : {"", "2", "1", "0"}) {
          step.backward(unit);
        }
      }
    }
    EXPECT_FALSE(step.found().has_value()) << sync;
  }
}

TEST(FrozenViewsTest, TwoForwardsBeforeABackwardAreNotAccused) {
  Step step;
  forward_of_three(step);
  forward_of_three(step);
  for (const char* unit : {"", "2", "1", "0"}) {
    step.backward(unit);
  }
  for (const char* unit : {"2", "1", "0"}) {
    step.backward(unit);
    step.reduce(unit);
  }
  step.reduce("");
  EXPECT_FALSE(step.found().has_value());
}

// A single unit; one block below the root; and one block inside a unit of tied embedding and head:
// in each, reductions are possible only at the end.
TEST(FrozenViewsTest, UnitsAroundOthersAreNoEvidence) {
  Step alone;
  alone.root_begins();
  alone.begin("");
  alone.compute(10);
  alone.end("");
  alone.backward("");
  alone.reduce("");
  EXPECT_FALSE(alone.found().has_value());

  Step block;
  block.root_begins();
  block.begin("");
  block.forward("0");
  block.end("");
  block.backward("");
  block.backward("0");
  block.reduce("0");
  block.reduce("");
  EXPECT_FALSE(block.found().has_value());

  Step tied;
  tied.root_begins();
  tied.begin("wte, head");
  tied.forward("0");
  tied.end("wte, head");
  tied.backward("wte, head");
  tied.backward("0");
  tied.reduce("0");
  tied.reduce("wte, head");
  EXPECT_FALSE(tied.found().has_value());
}

// FSDP2 reduces units whose inputs need no gradient only in its final callback.
TEST(FrozenViewsTest, ReductionsOfTheFinalCallbackAreNoEvidence) {
  Step step;
  step.root_begins();
  step.forward("left");
  step.forward("right");
  step.backward("right");
  step.backward("left");
  const Nanoseconds begin = step.now;
  step.reduce("right");
  step.reduce("left");
  step.b.range("FSDP::root_post_backward_callback", begin, step.now);
  EXPECT_FALSE(step.found().has_value());
}

// From only the trace, as if no plan were known.
void expect_fresh(const std::filesystem::path& path) {
  trace::Run run = trace::Run::open(path);
  run.planned.reset();
  const Analysis result = analyze(run);
  ASSERT_FALSE(result.ranks.empty()) << path;
  for (const RankAnalysis& rank : result.ranks) {
    EXPECT_FALSE(rank.frozen_views.has_value()) << path;
  }
}

TEST(FrozenViewsTest, CommittedCaptureIsFresh) {
  expect_fresh(SHARDLENS_TEST_DATA "/../../traces/llama-emulated8");
}

TEST(FrozenViewsTest, RecordedTracesAreFresh) {
  const std::filesystem::path recorded = SHARDLENS_OTHER_TRACES;
  if (!std::filesystem::is_directory(recorded)) {
    GTEST_SKIP() << "no recorded traces at " << recorded;
  }
  expect_fresh(recorded / "gloo_fsdp2");
  expect_fresh(recorded / "third_party/nccl_parser_config");
}

}  // namespace
}  // namespace shardlens::analysis
